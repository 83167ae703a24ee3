"""Segments: runs of inputs that a product sums apart, then as a binary tree, so that ranks which hold whole
subtrees of it, and add those up in the same order, give the bits of one rank.

    ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))

A whole product has eight, and where they lie its number of inputs alone decides. A rank of two has four of
them, of four two, of eight one."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
SEGMENTS = 8
UNIT = 16
"""Inputs that segments are made of: where K is no multiple of eight of them, some have one more; the last
unit may be short."""


def segments_of(k: int, unit: int = UNIT) -> tuple[int, ...]:
    """The widths of the eight segments of k inputs; some are 0 where there are fewer units."""
    units = -(-k // unit)
    bounds = [min(units * i // SEGMENTS * unit, k) for i in range(SEGMENTS + 1)]
    return tuple(last - first for first, last in pairwise(bounds))


def segment_ranges(widths: Sequence[int]) -> list[range]:
    """Places of segments of these widths."""
    ends = list(accumulate(widths, initial=0))
    return [range(first, last) for first, last in pairwise(ends)]


def subtree(widths: Sequence[int], ranks: int, rank: int) -> range:
    """Inputs that rank `rank` of `ranks` holds, of segments of these widths. ranks divides their number."""
    each = len(widths) // ranks
    first, last = sum(widths[: rank * each]), sum(widths[: (rank + 1) * each])
    return range(first, last)


def tree_sum(parts: Sequence[F32 | None]) -> F32 | None:
    """The sum of a power of two of parts, in the order of the tree; None stands for an empty one."""
    level = list(parts)
    while len(level) > 1:
        level = [_sum(a, b) for a, b in zip(level[::2], level[1::2], strict=True)]
    return level[0]


def _sum(a: F32 | None, b: F32 | None) -> F32 | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b
