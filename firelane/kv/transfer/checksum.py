"""The checksum of a page: fast enough to go with each copy; good against accidents, not against malice."""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

LANES = 511
"""Sums of 64 bits. No power of two, so that parts that have changed places change the sums."""


def checksum(page: NDArray[np.uint8]) -> int:
    """Of contiguous bytes."""
    whole = page.size // 8
    words, tail = page[: whole * 8].view(np.uint64), page[whole * 8 :]
    rows = whole // LANES
    sums = np.add.reduce(words[: rows * LANES].reshape(rows, LANES), axis=0)
    rest = words[rows * LANES :]
    return zlib.crc32(tail.data, zlib.crc32(rest.data, zlib.crc32(sums.data)))
