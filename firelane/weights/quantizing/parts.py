"""Parts: the tensors that a quantised matrix has in a checkpoint of compressed-tensors, rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codebooks import e4m3
from firelane.weights.quantized.numbers import E2M1
from firelane.weights.quantizing.floats import e2m1_groups, e4m3_codes, e4m3_scales
from firelane.weights.quantizing.integers import quantize_integers
from firelane.weights.quantizing.native import QuantizeLibrary
from firelane.weights.quantizing.schemes import Scheme

F32 = NDArray[np.float32]


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
