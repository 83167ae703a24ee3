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

MOST_NUMBERS = 10_000
"""That are kept as blocks."""


def install() -> None:
    _keep_block_types()
    _keep_shapes()
    _keep_numpy_types()
    _compare_names()
    _unwrap_only_constants()
    _broadcast_only_what_differs()
    _check_only_what_differs()
    _call_at_once()
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


def _compare_names() -> None:
    original = core.dtype.__eq__

    def equal(self: Any, other: Any) -> bool:
        if self is other:
            return True
        if isinstance(other, core.dtype):
            return self.name == other.name
        return original(self, other)

    core.dtype.__eq__ = equal


def _unwrap_only_constants() -> None:
    original = core._unwrap_if_constexpr
    plain = {core.tensor, int, float, bool, str, type(None)}

    def unwrap(value: Any) -> Any:
        return value if type(value) in plain else original(value)

    core._unwrap_if_constexpr = unwrap


def _broadcast_only_what_differs() -> None:
    original = TritonSemantic.broadcast_impl_value

    def spread(self: Any, value: Any, over: Any) -> Any:
        of_type = over.with_element_ty(value.type)
        return self.tensor(self.builder.create_splat(of_type, value.handle), of_type)

    def broadcast(self: Any, left: Any, right: Any) -> tuple[Any, Any]:
        a, b = left.type, right.type
        if a.is_block():
            if not b.is_block():
                return left, spread(self, right, a)
            return (left, right) if a.shape.values == b.shape.values else original(self, left, right)
        return (spread(self, left, b), right) if b.is_block() else (left, right)

    TritonSemantic.broadcast_impl_value = broadcast


def _check_only_what_differs() -> None:
    """Values of one type and shape go into an operation as they are; a number beside a value is made a block
    of the value's type once."""
    original = TritonSemantic.binary_op_type_checking_impl
    numbers: dict[Any, Any] = {}

    def check(self: Any, left: Any, right: Any, *options: bool, **named: bool) -> tuple[Any, Any]:
        if type(left) is not core.tensor or named:
            return original(self, left, right, *options, **named)
        if type(right) is core.tensor:
            divides = len(options) > 3 and options[3]
            if not divides and _are_alike(left.type, right.type):
                return left, right
        elif type(right) in (int, float):
            key = (_key(left.type), type(right), right, options)
            if key in numbers:
                return left, numbers[key]
            found = original(self, left, right, *options)
            if found[0] is left and len(numbers) < MOST_NUMBERS:
                numbers[key] = found[1]
            return found
        return original(self, left, right, *options)

    TritonSemantic.binary_op_type_checking_impl = check


def _are_alike(a: Any, b: Any) -> bool:
    """Tell whether two numbers have one key. Pointers are never alike: they are no operands of most
    operations."""
    return _key(a) == _key(b) and type(a.scalar) is core.dtype


def _key(of_type: Any) -> Any:
    """Blocks of one type share a dictionary, see _keep_block_types."""
    return id(of_type.__dict__) if of_type.is_block() else of_type.name


def _call_at_once() -> None:
    """The language's functions without two wrappers around each."""
    wrapper = core.builtin(_key).__code__

    def patch(owner: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        semantic = TritonSemantic(builder)
        function = member.__wrapped__ if getattr(member, "__code__", None) is wrapper else member

        def call(*arguments: Any, **named: Any) -> Any:
            named["_semantic"] = semantic
            return function(*arguments, **named)

        scope.set_attr(owner, name, call)

    interpreter._patch_attr = patch


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
