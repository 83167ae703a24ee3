"""Numbers of four and eight bits."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e8m0(bytes_: NDArray[np.uint8]) -> F32:
    """Powers of two, 127 for one; 255 is no number."""
    values = np.ldexp(np.float32(1), bytes_.astype(np.int32) - 127)
    return np.where(bytes_ == 255, np.float32(np.nan), values)


def nibbles(data: NDArray[Any]) -> NDArray[Any]:
    """Two of each byte (uint8), the lower first, along the last axis."""
    return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)


def unpacked(words: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Numbers of `bits` each out of words of 32, the lowest first, along the last axis."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    unsigned = np.ascontiguousarray(words).view(np.uint32)
    found = unsigned[..., None] >> shifts & np.uint32((1 << bits) - 1)
    return found.reshape(*words.shape[:-1], -1)
