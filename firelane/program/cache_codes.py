"""Codes of the KV cache: numbers of eight bits, with a scale for each row.

A row is what one token has of one key or value head; its scale depends on that row alone. So the bytes of a
page depend on its tokens, not on how they came there.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]

SCALES = 2
"""The number of scales of a token and KV head: of its key and of its value; of a latent, and of the key for
the position."""
SCALE_BYTES = 2
"""A scale is a bf16 number."""
E4M3_LEAST_EXPONENT = -6


class CacheCode(Enum):
    """INT8: whole numbers from -127 to 127. FP8: e4m3, with three bits of mantissa, up to 448 (Micikevicius
    et al., "FP8 Formats for Deep Learning", 2022)."""

    INT8 = "int8"
    FP8 = "fp8"

    @property
    def largest(self) -> int:
        return 127 if self is CacheCode.INT8 else 448

    def quantise(self, rows: F32) -> tuple[F32, F32]:
        """Rows float32 [..., n] as the numbers that their codes stand for, of the same shape, and scales
        [...]: a row is about their product. A row that holds a number that is not finite becomes NaN."""
        scales = _bf16(np.abs(rows).max(axis=-1) / np.float32(self.largest))
        with np.errstate(invalid="ignore", divide="ignore"):
            numbers = np.where(scales[..., None] > 0, rows / scales[..., None], np.float32(0))
        finite = np.logical_and.reduce(np.isfinite(rows), axis=-1)
        numbers = np.where(finite[..., None], self._rounded(numbers), np.float32(0))
        return numbers.astype(np.float32), np.where(finite, scales, np.float32(np.nan))

    def _rounded(self, numbers: F32) -> F32:
        """To the nearest number with a code, ties to even."""
        if self is CacheCode.INT8:
            return np.rint(numbers)
        exponents = np.maximum(np.frexp(numbers)[1] - 1, E4M3_LEAST_EXPONENT)
        step = np.exp2(exponents - 3, dtype=np.float32)
        return np.rint(numbers / step) * step


def _bf16(x: F32) -> F32:
    """To nearest, ties to even; x is not negative."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    with np.errstate(over="ignore"):
        upper = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return upper.view(np.float32)
