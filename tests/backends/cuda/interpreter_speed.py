"""The interpreter, several times faster: what it makes over and over is kept. No result changes.

Nearly all of its time goes into types of blocks, shapes and a language remade for each call; a kernel's own
arithmetic is small beside it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import triton.language as tl
from triton.language import core
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle


def install() -> None:
    _keep_block_types()
    _keep_shapes()
    _keep_numpy_types()
    _compare_by_identity()
    _broadcast_only_what_differs()
    _check_no_overflow()
    _patch_once()


def _keep_block_types() -> None:
    """All block types of one shape and element have one dictionary of attributes, which nobody changes."""
    original = core.block_type.__init__
    known: dict[Any, dict[str, Any]] = {}

    def init(self: Any, element_type: Any, shape: Any) -> None:
        key = (
            _identity(element_type),
            *[size.value if isinstance(size, tl.constexpr) else size for size in shape],
        )
        attributes = known.get(key)
        if attributes is None:
            original(self, element_type, shape)
            known[key] = self.__dict__
        else:
            self.__dict__ = attributes

    core.block_type.__init__ = init


def _identity(element_type: Any) -> Any:
    if isinstance(element_type, core.pointer_type):
        return element_type.name, element_type.address_space
    return element_type.name


def _keep_shapes() -> None:
    """A tensor's shape is made once for its type."""
    original = core.tensor.__init__
    scalar_shape: list[Any] = []

    def init(self: Any, handle: Any, of_type: Any) -> None:
        kept = of_type.__dict__.get("_tensor_shape") if of_type.is_block() else scalar_shape
        if not kept:
            original(self, handle, of_type)
            kept = [self.shape, self.numel]
            if of_type.is_block():
                of_type.__dict__["_tensor_shape"] = kept
            else:
                scalar_shape.extend(kept)
        self.handle = handle
        self.shape, self.numel = kept
        self.type = of_type
        self.dtype = of_type.scalar

    core.tensor.__init__ = init


def _keep_numpy_types() -> None:
    original = interpreter._get_np_dtype
    known: dict[str, np.dtype[Any]] = {}

    def numpy_type(of_type: Any) -> np.dtype[Any]:
        name = of_type.scalar.name
        if name not in known:
            known[name] = original(of_type)
        return known[name]

    interpreter._get_np_dtype = numpy_type

    def take_as_it_is(self: Any) -> None:
        """In place of a comparison of both types' sizes."""

    TensorHandle.__post_init__ = take_as_it_is


def _compare_by_identity() -> None:
    original = core.dtype.__eq__

    def equal(self: Any, other: Any) -> bool:
        return self is other or original(self, other)

    core.dtype.__eq__ = equal


def _broadcast_only_what_differs() -> None:
    original = TritonSemantic.broadcast_impl_value

    def broadcast(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        a, b = left.type, right.type
        if a.is_block() == b.is_block() and (not a.is_block() or a.shape.values == b.shape.values):
            return left, right
        return original(self, left, right)

    TritonSemantic.broadcast_impl_value = broadcast


def _check_no_overflow() -> None:
    """It computes sums of integers in 64 bits, too, for a check that only the device's debug mode makes."""
    builder: InterpreterBuilder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)


def _patch_once() -> None:
    """Each launch, and each call of a device function, makes all of the language's functions anew and takes
    them back. This process never compiles: once for each module is enough, for good."""
    original = interpreter._patch_lang
    patched: set[int] = set()

    def patch(function: Any) -> Any:
        module = id(function.__globals__)
        if module not in patched:
            patched.add(module)
            original(function)
        return interpreter._LangPatchScope()  # with nothing to take back

    interpreter._patch_lang = patch
