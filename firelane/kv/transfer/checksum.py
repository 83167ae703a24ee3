"""The checksum of a page: fast enough to go with each copy; good against accidents, not against malice.

A page is rows of 32 words of 64 bits, the last one filled up with zeros. Each column is summed, and its sums
so far are summed again, which tells rows in another order; both, mod 2^64, are mixed one after the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

LANES = 32
PRIME = 0x9E3779B97F4A7C15
"""Odd: each step of the mix can be undone, so that a change of one sum always changes the result."""
MASK = (1 << 64) - 1


def checksum(page: NDArray[np.uint8]) -> int:
    """The checksum of contiguous bytes, as page_copy.cpp computes it."""
    row_bytes = LANES * 8
    whole = page.size // row_bytes * row_bytes
    rows = page[:whole].view("<u8").reshape(-1, LANES)
    if whole < page.size:
        last = np.zeros(row_bytes, np.uint8)
        last[: page.size - whole] = page[whole:]
        rows = np.concatenate([rows, last.view("<u8")[None]])
    weights = np.arange(len(rows), 0, -1, dtype=np.uint64)
    sums = np.add.reduce(rows, axis=0), np.add.reduce(rows * weights[:, None], axis=0)
    result = 0
    for digit in np.concatenate(sums).tolist():
        result = (result ^ digit) * PRIME & MASK
        result ^= result >> 32
    return result
