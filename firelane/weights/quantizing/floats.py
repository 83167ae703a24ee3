"""Float codes of eight bits (e4m3, a scale for each row or block) and of four (e2m1, a power of two for each
group)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.quantized.numbers import E2M1

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
LARGEST_E4M3 = np.float32(448)
LEAST_EXPONENT, MOST_EXPONENT = -126, 127
MIDDLES = ((E2M1[:7] + E2M1[1:8]) / 2).astype(np.float32)
"""Between neighbours of e2m1; one of them belongs to the neighbour whose code is even."""


def e4m3_codes(values: F32) -> U8:
    """To the nearest, ties to even; what is larger than the largest becomes that."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    magnitude = np.minimum((bits & 0x7FFFFFFF).view(np.float32), LARGEST_E4M3)
    normal = magnitude.view(np.uint32)
    normal = (normal + 0x7FFFF + (normal >> 20 & 1)) >> 20  # exponent (bias 127) and three bits behind it
    small = np.rint(magnitude * np.float32(512))  # multiples of 2^-9, as far as 2^-6
    codes = np.where(magnitude < 2.0**-6, small, normal - np.uint32((127 - 7) << 3)).astype(np.uint8)
    return codes | (bits >> 24 & 0x80).astype(np.uint8)


def e4m3_scales(largest: F32) -> F32:
    """Scales of rows or blocks with these largest numbers, as bf16 holds them; 1 where all numbers are
    zero."""
    scales = widened(bf16_bits(largest / LARGEST_E4M3))
    return np.where(scales > 0, scales, np.float32(1))


def e2m1_codes(values: F32) -> U8:
    """To the nearest, ties to the even code; what is larger than the largest becomes that."""
    magnitude = np.abs(values)
    codes = np.zeros(values.shape, np.uint8)
    for code, middle in enumerate(MIDDLES):
        codes += magnitude >= middle if code % 2 else magnitude > middle
    return codes | np.signbit(values).astype(np.uint8) * np.uint8(8)


def e2m1_groups(groups: F32) -> tuple[U8, NDArray[np.int32]]:
    """groups: [groups, numbers]; codes of the same shape, and of each group the exponent of its scale: of the
    three next to where its largest number is the largest code, that with the least squared error."""
    _, above = np.frexp(np.abs(groups).max(axis=1))
    first = np.clip(above.astype(np.int32) - 3, LEAST_EXPONENT + 1, MOST_EXPONENT - 1)
    best = np.full(len(groups), np.inf, np.float32)
    codes, exponents = np.zeros(groups.shape, np.uint8), first.copy()
    for step in (0, 1, -1):
        scale = np.ldexp(np.float32(1), first + step)[:, None]
        found = e2m1_codes(groups / scale)
        apart = groups - E2M1[found] * scale
        error = np.einsum("ij,ij->i", apart, apart)
        better = error < best
        best[better], codes[better] = error[better], found[better]
        exponents[better] = first[better] + step
    return codes, exponents
