"""Assembly that decodes quantised weights: four codes of one register become four bf16 in two.

A code becomes a float32 that is exact, then times its scale, less its minimum, each rounded as float32 is,
then rounded to bf16. Integers: the code in the lowest byte of 2^23, which is then taken away. Floats of four
and eight bits: their bits are the upper ones of a bf16 with a smaller exponent, which the scale makes up for
(factor_of). Within bounds: a weight that is an escape has to become zero; comparisons of pairs give masks.
"""

from __future__ import annotations

import triton

from firelane.backends.cuda.weights.matrices import FP4, FP8, HALF_BYTES, INT4, INT8

_FACTORS = {INT4: 1.0, INT8: 1.0, FP8: 2.0**120, FP4: 2.0**126}
_FLOAT_SHIFTS = {FP8: (4, "0x07f007f0", 8), FP4: (6, "0x01c001c0", 12)}
"""To the left, of exponent and mantissa; where they are then; and of the sign."""
_TWO_TO_23 = 0x4B000000  # as float32


def text_of(numbers: str, *, upper: bool, minima: bool, bounds: bool) -> str:
    """Outputs: $0, $1. Inputs: the codes, their scales, minima, lower bounds and upper ones, as far as there
    are any. upper: codes of four bits are the upper halves of their bytes."""
    low = 11 if minima else 7
    lines = [
        ".reg .b32 c, t, u, f<4>;",
        "shr.b32 c, $2, 4;" if upper and numbers in HALF_BYTES else "mov.b32 c, $2;",
        *(_floats(numbers) if numbers in _FLOAT_SHIFTS else _integers(numbers, minima=minima)),
        *(f"mul.rn.f32 f{i}, f{i}, ${3 + i};" for i in range(4)),
        *(f"sub.rn.f32 f{i}, f{i}, ${7 + i};" for i in range(4) if minima),
        "cvt.rn.bf16x2.f32 t, f1, f0;",
        "cvt.rn.bf16x2.f32 u, f3, f2;",
        *(line for word in "tu" if bounds for line in _bounded(word, low=low, high=low + 4)),
        "mov.b32 $0, t;",
        "mov.b32 $1, u;",
    ]
    return "{\n    " + "\n    ".join(lines) + "\n}"


def _integers(numbers: str, *, minima: bool) -> list[str]:
    """Instructions that decode integers: those of eight bits have a sign; those of four count from 0 on, with
    minima, else from -8 on."""
    is_half = numbers == INT4
    least = (0 if minima else 8) if is_half else 128
    return [
        "and.b32 c, c, 0x0f0f0f0f;" if is_half else "xor.b32 c, c, 0x80808080;",
        *(f"prmt.b32 f{i}, c, 0x{_TWO_TO_23:08x}, 0x744{i};" for i in range(4)),
        *(f"sub.rn.f32 f{i}, f{i}, 0f{_TWO_TO_23 + least:08x};" for i in range(4)),
    ]


def _floats(numbers: str) -> list[str]:
    """Instructions that decode floats of bytes 0 and 2 into t, of 1 and 3 into u, as pairs of bf16; each is
    the upper half of a float32."""
    left, place, sign = _FLOAT_SHIFTS[numbers]
    lines: list[str] = []
    for pair in "tu":
        lines += [
            f"shl.b32 {pair}, c, {left};",
            f"and.b32 {pair}, {pair}, {place};",
            f"shl.b32 f0, c, {sign};",
            f"lop3.b32 {pair}, f0, 0x80008000, {pair}, 0xea;",  # (first & second) | third
            "shr.b32 c, c, 8;",
        ]
    return [
        *lines,
        "shl.b32 f0, t, 16;",
        "shl.b32 f1, u, 16;",
        "and.b32 f2, t, 0xffff0000;",
        "and.b32 f3, u, 0xffff0000;",
    ]


def _bounded(word: str, *, low: int, high: int) -> list[str]:
    """Both numbers of the word, or zero where they are below the one bound, or not below the other."""
    return [
        f"and.b32 c, {word}, 0x7fff7fff;",
        f"set.ge.u32.bf16x2 f0, c, ${low};",
        f"set.lt.u32.bf16x2 f1, c, ${high};",
        f"and.b32 {word}, {word}, f0;",
        f"and.b32 {word}, {word}, f1;",
    ]


_TEXTS = {
    (numbers, upper, minima, bounds): text_of(numbers, upper=upper, minima=minima, bounds=bounds)
    for numbers in _FACTORS
    for upper in (False, True)
    for minima in (False, True)
    for bounds in (False, True)
}


@triton.constexpr_function
def decode_text(numbers: str, upper: bool, minima: bool, bounds: bool) -> str:
    """text_of() these."""
    return _TEXTS[numbers, upper, minima, bounds]


@triton.constexpr_function
def constraints_of(minima: bool, bounds: bool) -> str:
    """Constraints of decode_text(): operands, four times each but for the codes."""
    return ",".join(["=r", "=r", "r", *["f"] * (8 if minima else 4), *["r"] * (8 if bounds else 0)])


@triton.constexpr_function
def factor_of(numbers: str) -> float:
    """The factor of scales with which decoded numbers have their exponents."""
    return _FACTORS[numbers]


@triton.constexpr_function
def is_half(numbers: str) -> bool:
    """Whether two codes share a byte."""
    return numbers in HALF_BYTES
