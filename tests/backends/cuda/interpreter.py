"""Triton's interpreter, made to compute what the device computes.

As it comes it holds bf16 as uint16 and computes on those bits, truncates where the device rounds, and refuses
inline assembly. install() mends that for the whole process. It must run before a kernel does, and
TRITON_INTERPRET=1 must be set before triton is first imported (tests/conftest.py sees to it).

Sums have a fixed order here, too, so that equality bit for bit can be tested: tl.dot adds one product after
the other to its accumulator, by increasing k (so its tiles do not matter, where the accumulator is passed to
it); tl.sum halves its axis until one element is left. The device's own orders are others.

What stays different from the device: products of float32 are exact (there: by input_precision), exp2 and the
like are exact to a bit or two, and no product is fused with a sum.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from tests.backends.cuda import interpreter_speed
from tests.backends.cuda.interpreter_ptx import run_inline_assembly

Float32 = NDArray[np.float32]

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
    _mend_comparisons()
    _mend_dot()
    _mend_sums()
    _mend_functions()
    _mend_casts()
    _refuse_bf16_reductions()
    _mend_scalars()
    _silence_numpy()
    interpreter_speed.install()
    InterpreterBuilder.create_inline_asm = run_inline_assembly


def bf16_bits(values: Float32) -> NDArray[np.uint16]:
    """float32 rounded to the nearest bf16, ties to even; NaN becomes the one quiet NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def bf16_values(bits: NDArray[np.uint16]) -> Float32:
    return (np.ascontiguousarray(bits).astype(np.uint32) << 16).view(np.float32)


def _is_bf16(handle: Any) -> bool:
    return handle.dtype.scalar.name == "bf16"


def _widen(handle: Any) -> Any:
    return TensorHandle(bf16_values(handle.data), tl.float32) if _is_bf16(handle) else handle


def _narrow(values: NDArray[Any]) -> Any:
    return TensorHandle(bf16_bits(values.astype(np.float32)), tl.bfloat16)


def _compute_in_float32(name: str, count: int) -> None:
    original: Callable[..., Any] = getattr(InterpreterBuilder, name)

    def mended(self: Any, *arguments: Any) -> Any:
        for value in arguments[:count]:
            if _is_bf16(value):
                break
        else:
            return original(self, *arguments)
        result = original(self, *map(_widen, arguments[:count]), *arguments[count:])
        return result if result.data.dtype == np.bool_ else _narrow(result.data)

    setattr(InterpreterBuilder, name, mended)


def _mend_comparisons() -> None:
    """Their results would have the type of what was compared, and be no masks once spread over a block."""
    original = InterpreterBuilder.binary_op

    def binary_op(self: Any, left: Any, right: Any, function: Callable[..., Any]) -> Any:
        result = original(self, left, right, function)
        return TensorHandle(result.data, tl.int1) if result.data.dtype == np.bool_ else result

    InterpreterBuilder.binary_op = binary_op


def _mend_dot() -> None:
    """In NumPy the order of a product's sum depends on the shapes."""
    original = InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, accumulator: Any, *rest: Any) -> Any:
        a, b = _widen(a), _widen(b)
        if accumulator.dtype.scalar != tl.float32 or not a.dtype.is_floating() or a.data.itemsize < 2:
            return original(self, a, b, accumulator, *rest)
        return TensorHandle(ordered_product(a.data, b.data, accumulator.data), tl.float32)

    def smallest_dot(left: Any, right: Any) -> tuple[int, int, int]:
        """M, N and K that the compiler takes for this target; the interpreter's own would take any."""
        del right
        return 1, 1, 32 if left.scalar.primitive_bitwidth == 8 else 16

    InterpreterBuilder.create_dot = create_dot
    interpreter.interpreter_builder.codegen_fns["min_dot_size"] = smallest_dot


def ordered_product(a: NDArray[Any], b: NDArray[Any], accumulator: Float32) -> Float32:
    """accumulator + a @ b in float32, one product after the other; [..., M, K] and [..., K, N]."""
    result = accumulator.astype(np.float32)
    columns = np.moveaxis(a.astype(np.float32), -1, 0)[..., None]
    rows = np.moveaxis(b.astype(np.float32), -2, 0)[..., None, :]
    product = np.empty_like(result)
    for column, row in zip(columns, rows, strict=True):
        np.multiply(column, row, out=product)
        result += product
    return result


def _mend_sums() -> None:
    """In NumPy the order of a sum depends on how the other axes lie in memory."""

    def halve(self: Any, value: Any) -> Any:
        data = value.handle.data
        if self.axis is None:
            total, kept = halving_sum(data.reshape(-1)), [1] * data.ndim
        else:
            total = halving_sum(np.moveaxis(data, self.axis, 0))
            kept = np.expand_dims(total, self.axis).shape
        return self.to_tensor(np.reshape(total, kept) if self.keep_dims else total, value.dtype)

    interpreter.ReduceOps.sum = halve


def halving_sum(data: NDArray[Any]) -> NDArray[Any]:
    """Over the first axis, whose length is a power of two."""
    while len(data) > 1:
        half = len(data) // 2
        data = data[:half] + data[half:]
    return data[0]


def _mend_functions() -> None:
    """NumPy's exp2 and the like give other last bits where the elements do not lie side by side."""
    original = InterpreterBuilder.unary_op

    def unary_op(self: Any, value: Any, function: Callable[..., Any]) -> Any:
        return original(self, TensorHandle(np.ascontiguousarray(value.data), value.dtype), function)

    InterpreterBuilder.unary_op = unary_op


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
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of nanmax, where all is NaN
            original(self, *arguments, **named)

    interpreter.GridExecutor.__call__ = call
