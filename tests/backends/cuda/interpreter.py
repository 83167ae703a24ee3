"""Triton's interpreter, made to compute what the device computes.

As it comes it holds bf16 as uint16 and computes on those bits, truncates where the device rounds, and refuses
inline assembly. install() mends that for the whole process. It must run before a kernel does, and
TRITON_INTERPRET=1 must be set before triton is first imported (tests/conftest.py sees to it).

What stays different from the device: products of float32 are exact (there: by input_precision), exp2 and the
like are exact to a bit or two, sums within a tile are in NumPy's order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.backends.cuda.interpreter_ptx import run_inline_assembly

# How many of a builder method's first arguments are values that may be bf16.
_VALUES_OF = {
    "binary_op": 2,
    "unary_op": 1,
    "create_fma": 3,
    "create_clampf": 3,
    "create_fabs": 1,
    "create_rsqrt": 1,
}
_FLOATS = (tl.bfloat16, tl.float16, tl.float32, tl.float64)


@cache
def install() -> None:
    """Mend the interpreter of this process, once."""
    for name, count in _VALUES_OF.items():
        _compute_in_float32(name, count)
    _mend_dot()
    _mend_casts()
    _refuse_bf16_reductions()
    _mend_scalars()
    _silence_numpy()
    InterpreterBuilder.create_inline_asm = run_inline_assembly


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """float32 rounded to the nearest bf16, ties to even; NaN becomes the one quiet NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar == tl.bfloat16


def _widen(handle: Any) -> Any:
    return TensorHandle(bf16_values(handle.data), tl.float32) if _is_bf16(handle) else handle


def _narrow(values: NDArray[Any]) -> Any:
    return TensorHandle(bf16_bits(values.astype(np.float32)), tl.bfloat16)


def _compute_in_float32(name: str, count: int) -> None:
    original: Callable[..., Any] = getattr(InterpreterBuilder, name)

    def mended(self: Any, *arguments: Any) -> Any:
        if not any(_is_bf16(value) for value in arguments[:count]):
            return original(self, *arguments)
        result = original(self, *map(_widen, arguments[:count]), *arguments[count:])
        return result if result.data.dtype == np.bool_ else _narrow(result.data)

    setattr(InterpreterBuilder, name, mended)


def _mend_dot() -> None:
    original = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *rest: Any) -> Any:
        if _is_bf16(a) and a.data.shape[-1] < 16:
            raise TypeError("tl.dot of bf16 needs 16 inputs at least: the compiler refuses fewer")
        return original(self, _widen(a), _widen(b), accumulator, *rest)

    InterpreterBuilder.create_dot = create_dot


def _mend_casts() -> None:
    original_cast, original_fp_to_fp = InterpreterBuilder.cast_impl, InterpreterBuilder.create_fp_to_fp

    def cast_impl(self: Any, source: Any, to: Any) -> Any:
        if to.scalar == tl.bfloat16:
            return source if _is_bf16(source) else _narrow(source.data)
        if _is_bf16(source):
            values = _widen(source).data
            return TensorHandle(values.astype(interpreter._get_np_dtype(to)), to.scalar)
        return original_cast(self, source, to)

    def create_fp_to_fp(self: Any, source: Any, to: Any, rounding_mode: Any) -> Any:
        types = (source.dtype.scalar, to.scalar)
        if tl.bfloat16 in types and all(t in _FLOATS for t in types):
            return cast_impl(self, source, to)
        return original_fp_to_fp(self, source, to, rounding_mode)

    def get_bf16(_: Any, value: float) -> Any:
        return _narrow(np.array([value]))

    InterpreterBuilder.cast_impl = cast_impl
    InterpreterBuilder.create_fp_to_fp = create_fp_to_fp
    InterpreterBuilder.get_bf16 = get_bf16


def _refuse_bf16_reductions() -> None:
    """The device would add, or compare, in bf16; no kernel means to."""
    original = interpreter.ReduceScanOpInterface.check_tensor

    def check_tensor(self: Any, inputs: Any) -> Any:
        if any(value.dtype.scalar == tl.bfloat16 for value in inputs):
            raise TypeError("a reduction or scan of bf16: convert to float32 first")
        return original(self, inputs)

    interpreter.ReduceScanOpInterface.check_tensor = check_tensor


def _mend_scalars() -> None:
    """A run-time number as a bound of range(): NumPy 2.4 takes no int() of an array of one element."""
    original = interpreter._patch_lang_tensor

    def patch(tensor: Any, *rest: Any) -> None:
        original(tensor, *rest)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    interpreter._patch_lang_tensor = patch


def _silence_numpy() -> None:
    """Infinity, NaN and wrap-around are a kernel's daily bread; warnings are errors in our tests."""
    original = interpreter.GridExecutor.__call__

    def call(self: Any, *arguments: Any, **named: Any) -> None:
        with np.errstate(all="ignore"):
            original(self, *arguments, **named)

    interpreter.GridExecutor.__call__ = call
