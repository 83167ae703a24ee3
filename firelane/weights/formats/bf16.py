"""Rounding to bf16."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def bf16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Rounded to nearest, ties to even; infinite and NaN where `values` are."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> 16 & 1)) >> 16
    special = (bits & 0x7F800000) == 0x7F800000
    return np.where(special, bits >> 16 | ((bits & 0xFFFF) != 0), rounded).astype(np.uint16)
