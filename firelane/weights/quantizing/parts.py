"""Parts: the tensors that a quantised matrix has in a checkpoint of compressed-tensors, rows at a time.

Float codes have eight bits (e4m3, a scale for each row or block) or four (e2m1, a power of two for each
group)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codebooks import e4m3
from firelane.weights.quantized.numbers import E2M1
from firelane.weights.quantizing.integers import quantize_integers
from firelane.weights.quantizing.native import QuantizeLibrary
from firelane.weights.quantizing.schemes import Scheme

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


@dataclass(frozen=True)
class QuantizedPart:
    """A tensor behind the module's name: dtype as safetensors names it, shape of the whole matrix's."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class QuantizedRows:
    """Some rows of a matrix, quantised: those of each part that grows with the rows, and in float32 the
    numbers that they stand for."""

    parts: Mapping[str, NDArray[Any]]
    values: F32


def parts_of(scheme: Scheme, n: int, k: int) -> dict[str, QuantizedPart]:
    """Tensors that a matrix [n, k] is stored as."""
    if scheme.numbers == "int":
        return {
            "weight_packed": QuantizedPart("I32", (n, -(-k * scheme.bits // 32))),
            "weight_scale": QuantizedPart("BF16", (n, k // scheme.group if scheme.group else 1)),
            "weight_shape": QuantizedPart("I64", (2,)),
        }
    if scheme.numbers == "e2m1":
        return {
            "weight_packed": QuantizedPart("U8", (n, k // 2)),
            "weight_scale": QuantizedPart("U8", (n, k // scheme.group)),
        }
    tall, wide = scheme.block or (1, k)
    return {
        "weight": QuantizedPart("F8_E4M3", (n, k)),
        "weight_scale": QuantizedPart("BF16", (-(-n // tall), -(-k // wide))),
    }


def quantize_rows(values: F32, scheme: Scheme, library: QuantizeLibrary | None = None) -> QuantizedRows:
    """Rows [rows, k]; of a scheme with blocks whole ones, but for the last. ValueError for numbers that are
    not finite."""
    if not np.isfinite(values).all():
        raise ValueError("a weight is not finite")
    if scheme.numbers == "int":
        return _integers(values, scheme, library)
    return MAKERS[scheme.numbers](values, scheme)


def _integers(values: F32, scheme: Scheme, library: QuantizeLibrary | None) -> QuantizedRows:
    found = quantize_integers(values, scheme, library)
    parts = {"weight_packed": packed(found.codes, scheme.bits), "weight_scale": bf16_bits(found.scales)}
    return QuantizedRows(parts, found.values())


def packed(codes: NDArray[np.int8], bits: int) -> NDArray[np.int32]:
    """Codes of neighbours, plus half of their range, in words of 32 bits, the first in the lowest."""
    each = 32 // bits
    unsigned = (codes.astype(np.int16) + (1 << (bits - 1))).astype(np.uint8)
    unsigned = np.pad(unsigned, [(0, 0), (0, -codes.shape[1] % each)])
    data = unsigned if bits == 8 else unsigned[:, 0::2] | unsigned[:, 1::2] << 4
    return np.ascontiguousarray(data).view("<i4")


def _e4m3(values: F32, scheme: Scheme) -> QuantizedRows:
    n, k = values.shape
    tall, wide = scheme.block or (1, k)
    edges = np.arange(0, n, tall), np.arange(0, k, wide)
    largest = np.maximum.reduceat(np.maximum.reduceat(np.abs(values), edges[0], axis=0), edges[1], axis=1)
    scales = e4m3_scales(largest)
    spread = np.repeat(np.repeat(scales, tall, axis=0)[:n], wide, axis=1)[:, :k]
    codes = e4m3_codes(values / spread)
    return QuantizedRows({"weight": codes, "weight_scale": bf16_bits(scales)}, e4m3()[codes] * spread)


def _e2m1(values: F32, scheme: Scheme) -> QuantizedRows:
    n, k = values.shape
    codes, exponents = e2m1_groups(values.reshape(-1, scheme.group))
    scales = np.ldexp(np.float32(1), exponents)
    numbers = (E2M1[codes] * scales[:, None]).reshape(n, k)
    codes = codes.reshape(n, k)
    parts = {
        "weight_packed": codes[:, 0::2] | codes[:, 1::2] << 4,
        "weight_scale": (exponents + 127).astype(np.uint8).reshape(n, -1),
    }
    return QuantizedRows(parts, numbers)


MAKERS: Mapping[str, Callable[[F32, Scheme], QuantizedRows]] = {"e4m3": _e4m3, "e2m1": _e2m1}
