"""Inline PTX in the interpreter: the instructions of packed decodes, on NumPy arrays of registers.

Every operand is a 32-bit register that holds `pack` values, as the compiler lays them out. Instructions, each
with whatever type suffixes:

    mov    and or xor not lop3    shl shr shf.l shf.r    add sub neg mul.lo mul.hi mad.lo    min max
    prmt bfe bfi popc clz

of float32, and of pairs of bf16, by their full names:

    add.rn.f32 sub.rn.f32 mul.rn.f32    cvt.rn.bf16x2.f32    set.ge.u32.bf16x2 set.lt.u32.bf16x2

Numbers stand as PTX has them, 0f… for float32. Anything else raises NotImplementedError.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

Register = NDArray[np.uint32]
Instruction = Callable[..., Register]

_INSTRUCTION = re.compile(r"(?<![@\w])([a-z][a-z0-9]*)((?:\.[a-z0-9]+)*)\s+([^;{}]+);")
_DECLARATION = re.compile(r"\.reg[^;]*;")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


class Registers(list[Any]):
    """The values that an assembly gives; Triton asks for them by get_result()."""

    def get_result(self, index: int) -> Any:
        return self[index]


def run_inline_assembly(
    builder: Any, text: str, constraints: str, values: list[Any], types: list[Any], pure: bool, pack: int
) -> Registers:
    """InterpreterBuilder.create_inline_asm. `values` are broadcast; all results have their shape."""
    del builder, pure
    kinds = [c.strip() for c in constraints.split(",")]
    num_outputs = sum(kind.startswith("=") for kind in kinds)
    widths = [pack * np.dtype(interpreter._get_np_dtype(to)).itemsize // 4 for to in types]
    if num_outputs != sum(widths):
        raise ValueError(f"inline assembly: {sum(widths)} result registers for constraints {constraints!r}")
    shape = np.broadcast_shapes(*[value.data.shape for value in values])
    inputs = [_pack(np.broadcast_to(value.data, shape), pack) for value in values]
    inputs = [column for columns in inputs for column in columns.T]
    if num_outputs + len(inputs) != len(kinds):
        raise ValueError(f"inline assembly: {len(inputs)} input registers for constraints {constraints!r}")
    registers = {f"${num_outputs + i}": column for i, column in enumerate(inputs)}
    run_ptx(text, registers)
    ends = np.cumsum(widths)
    results = [
        [registers[f"${i}"] for i in range(end - width, end)] for width, end in zip(widths, ends, strict=True)
    ]
    return Registers(_unpack(columns, shape, to) for columns, to in zip(results, types, strict=True))


def run_ptx(text: str, registers: dict[str, Register]) -> None:
    """Run the instructions of `text` on `registers`, which gains what they write. All have one length."""
    length = next(iter(registers.values())).size

    def operand(name: str) -> Register:
        if name in registers:
            return registers[name]
        number = int(name[2:], 16) if name.startswith("0f") else int(name, 0)
        return np.full(length, number & 0xFFFFFFFF, np.uint32)

    code = _DECLARATION.sub("", _COMMENT.sub("", text))
    for match in _INSTRUCTION.finditer(code):
        operation, suffix, operands = match.groups()
        target, *sources = [name.strip() for name in operands.split(",")]
        instruction = _find(operation, suffix)
        with np.errstate(over="ignore"):
            registers[target] = instruction(*map(operand, sources)).astype(np.uint32, copy=False)
    left = re.sub(r"[\s{}]", "", _INSTRUCTION.sub("", code))
    if left:
        raise NotImplementedError(f"inline assembly: cannot read {left!r}")


def _find(operation: str, suffix: str) -> Instruction:
    """By the full name less its bit type, then by the first part: mad.lo.u32 -> mad.lo, lop3.b32 -> lop3."""
    if operation + suffix in FLOAT_INSTRUCTIONS:
        return FLOAT_INSTRUCTIONS[operation + suffix]
    parts = [p for p in suffix.split(".") if p]
    if not parts or parts[-1] not in ("b32", "u32", "s32"):
        raise NotImplementedError(
            f"inline assembly: {operation}{suffix} is not a 32-bit instruction known here"
        )
    signed = ".s32" if parts[-1] == "s32" else ""
    name = ".".join([operation, *parts[:-1]])
    for candidate in (name + signed, name):
        if candidate in INSTRUCTIONS and not (signed and candidate in _SIGN_MATTERS):
            return INSTRUCTIONS[candidate]
    raise NotImplementedError(f"inline assembly: {operation}{suffix} is not known to the interpreter")


def _pack(data: NDArray[Any], pack: int) -> Register:
    """[registers' length, registers of one operand]"""
    groups = np.ascontiguousarray(data).reshape(-1, pack)
    if groups.dtype == np.bool_ or groups.dtype.itemsize * pack % 4:
        raise TypeError(f"inline assembly: {pack} values of {groups.dtype} do not fill 32-bit registers")
    return groups.view(np.uint32)


def _unpack(columns: list[Register], shape: tuple[int, ...], to: Any) -> Any:
    data = np.stack(columns, axis=1).view(interpreter._get_np_dtype(to))
    return TensorHandle(data.reshape(shape), to.scalar)


def _shift_left(a: Register, count: Register) -> Register:
    return np.where(count > 31, 0, a << (count & 31)).astype(np.uint32)


def _shift_right(a: Register, count: Register) -> Register:
    return np.where(count > 31, 0, a >> (count & 31)).astype(np.uint32)


def _shift_right_signed(a: Register, count: Register) -> Register:
    return (a.view(np.int32) >> np.minimum(count, 31).astype(np.int32)).view(np.uint32)


def _funnel(low: Register, high: Register) -> NDArray[np.uint64]:
    return high.astype(np.uint64) << np.uint64(32) | low


def _funnel_left(low: Register, high: Register, count: Register) -> Register:
    """The upper half of high:low << count."""
    return (_funnel(low, high) << count.astype(np.uint64) >> np.uint64(32)).astype(np.uint32)


def _funnel_right(low: Register, high: Register, count: Register) -> Register:
    """The lower half of high:low >> count."""
    return (_funnel(low, high) >> count.astype(np.uint64)).astype(np.uint32)


def _permute(a: Register, b: Register, selector: Register) -> Register:
    """Byte i of the result is the byte of b:a that nibble i of the selector names; bit 3 of a nibble: only
    the byte's sign, in all of its bits."""
    sources = np.stack([x >> np.uint32(8 * i) & np.uint32(255) for x in (a, b) for i in range(4)])
    result = np.zeros_like(a)
    for i in range(4):
        nibble = selector >> np.uint32(4 * i) & np.uint32(15)
        byte = np.take_along_axis(sources, (nibble & 7)[None].astype(np.int64), axis=0)[0]
        byte = np.where(nibble & 8, (byte >> 7) * 255, byte).astype(np.uint32)
        result |= byte << np.uint32(8 * i)
    return result


def _lop3(a: Register, b: Register, c: Register, table: Register) -> Register:
    """Bit (a << 2 | b << 1 | c) of the table, for every bit."""
    result = np.zeros_like(a)
    for i in range(8):
        if int(table[0]) >> i & 1:
            result |= (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return result


def _extract(a: Register, start: Register, length: Register) -> Register:
    return _shift_right(a, start & 255) & _ones(length)


def _extract_signed(a: Register, start: Register, length: Register) -> Register:
    length = np.minimum(length & 255, 32).astype(np.int64)
    start = np.minimum(start & 255, 31).astype(np.int64)
    value = a.view(np.int32).astype(np.int64) >> start
    spread = 64 - length
    return np.where(length == 0, 0, value << np.minimum(spread, 63) >> np.minimum(spread, 63)).astype(
        np.uint32
    )


def _insert(a: Register, b: Register, start: Register, length: Register) -> Register:
    mask = _shift_left(_ones(length), start & 255)
    return b & ~mask | _shift_left(a, start & 255) & mask


def _ones(length: Register) -> Register:
    count = np.minimum(length & 255, 32).astype(np.uint64)
    return ((np.uint64(1) << count) - np.uint64(1)).astype(np.uint32)


def _high_product(a: Register, b: Register) -> Register:
    return (a.astype(np.uint64) * b >> np.uint64(32)).astype(np.uint32)


def _signed(function: Callable[..., Any]) -> Instruction:
    return lambda *registers: function(*[r.view(np.int32) for r in registers]).view(np.uint32)


def _leading_zeros(a: Register) -> Register:
    return (32 - np.frexp(a.astype(np.float64))[1]).astype(np.uint32)


def _bits_set(a: Register) -> Register:
    return np.bitwise_count(a).astype(np.uint32)


def _float(function: Callable[..., Any]) -> Instruction:
    return lambda *registers: function(*[r.view(np.float32) for r in registers]).view(np.uint32)


def _pair(upper: Register, lower: Register) -> Register:
    """Two float32 rounded to bf16."""
    upper, lower = (_rounded(r).astype(np.uint32) for r in (upper, lower))
    return upper << 16 | lower


def _rounded(values: Register) -> NDArray[np.uint16]:
    bits = (values + np.uint32(0x7FFF) + (values >> 16 & 1)) >> 16
    return np.where(np.isnan(values.view(np.float32)), 0x7FFF, bits).astype(np.uint16)


def _mask_of_pairs(compare: Callable[..., Any]) -> Instruction:
    """All ones in each half where it holds."""

    def halves(r: Register) -> list[Any]:
        return [(r & np.uint32(0xFFFF0000)).view(np.float32), (r << 16).view(np.float32)]

    def run(a: Register, b: Register) -> Register:
        upper, lower = (compare(x, y).astype(np.uint32) for x, y in zip(halves(a), halves(b), strict=True))
        return upper * np.uint32(0xFFFF0000) | lower * np.uint32(0xFFFF)

    return run


FLOAT_INSTRUCTIONS: Mapping[str, Instruction] = {
    "add.rn.f32": _float(np.add),
    "sub.rn.f32": _float(np.subtract),
    "mul.rn.f32": _float(np.multiply),
    "cvt.rn.bf16x2.f32": _pair,
    "set.ge.u32.bf16x2": _mask_of_pairs(np.greater_equal),
    "set.lt.u32.bf16x2": _mask_of_pairs(np.less),
}
INSTRUCTIONS: Mapping[str, Instruction] = {
    "mov": lambda a: a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "not": lambda a: ~a,
    "shl": _shift_left,
    "shr": _shift_right,
    "shr.s32": _shift_right_signed,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "neg": lambda a: np.uint32(0) - a,
    "mul.lo": lambda a, b: a * b,
    "mul.hi": _high_product,
    "mad.lo": lambda a, b, c: a * b + c,
    "min": np.minimum,
    "max": np.maximum,
    "min.s32": _signed(np.minimum),
    "max.s32": _signed(np.maximum),
    "prmt": _permute,
    "lop3": _lop3,
    "shf.l.wrap": lambda low, high, count: _funnel_left(low, high, count & 31),
    "shf.r.wrap": lambda low, high, count: _funnel_right(low, high, count & 31),
    "shf.l.clamp": lambda low, high, count: _funnel_left(low, high, np.minimum(count, 32)),
    "shf.r.clamp": lambda low, high, count: _funnel_right(low, high, np.minimum(count, 32)),
    "bfe": _extract,
    "bfe.s32": _extract_signed,
    "bfi": _insert,
    "popc": _bits_set,
    "clz": _leading_zeros,
}
_SIGN_MATTERS = frozenset({"shr", "mul.hi", "min", "max", "bfe"})
"""The plain entries of these instructions are the unsigned ones: a signed use needs an entry of its own."""
