"""Layout of a plan's weights in the packed file: weights in the plan's order, each one at the next place that
its alignment allows. How long a weight in a coded format is, only packing tells; the sizes of all tell
everything.

A matrix in a coded format comes after its table: uint64 [panels + 1], where its panels begin and the last
one ends, counted from its first byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from firelane.weights.formats.coded import OVERREAD_BYTES
from firelane.weights.formats.formats import PANEL_ROWS, round_up
from firelane.weights.packing.plan import PackedWeight

MATRIX_ALIGNMENT_BYTES = 4096
VECTOR_ALIGNMENT_BYTES = 64
TABLE_ALIGNMENT_BYTES = 8


@dataclass(frozen=True, kw_only=True)
class WeightPlace:
    """Bytes offset .. offset + nbytes - 1 of the payload; `table` is where the panel table begins, if any."""

    offset: int
    nbytes: int
    table: int | None


@dataclass(frozen=True, kw_only=True)
class PackedLayout:
    """The places of all weights, in the plan's order."""

    places: tuple[WeightPlace, ...]
    payload_bytes: int

    @property
    def extent_ends(self) -> tuple[int, ...]:
        """The ends of each weight's bytes, what fills the gap to the next one or its table included."""
        starts = [place.offset if place.table is None else place.table for place in self.places]
        return (*starts[1:], self.payload_bytes)


def starts_after(p: PackedWeight, end: int) -> tuple[int | None, int]:
    """The places where the table, if there is one, and the weight begin when the one before ends at `end`."""
    if not p.format.is_coded:
        return None, round_up(end, MATRIX_ALIGNMENT_BYTES if p.is_matrix else VECTOR_ALIGNMENT_BYTES)
    table = round_up(end, TABLE_ALIGNMENT_BYTES)
    return table, round_up(table + table_bytes(p), MATRIX_ALIGNMENT_BYTES)


def table_bytes(p: PackedWeight) -> int:
    return (p.panels + 1) * np.dtype(np.uint64).itemsize


def lay_out(placed: Sequence[PackedWeight], sizes: Sequence[int]) -> PackedLayout:
    """ValueError where a weight of the plan cannot have its size."""
    if len(sizes) != len(placed):
        raise ValueError(f"{len(sizes)} sizes for {len(placed)} weights")
    places: list[WeightPlace] = []
    end = 0
    for p, nbytes in zip(placed, sizes, strict=True):
        least, most = p.panel_bounds
        if not p.panels * least <= nbytes <= p.panels * most:
            raise ValueError(f"{p.weight.name} cannot have {nbytes} bytes")
        table, offset = starts_after(p, end)
        places.append(WeightPlace(offset=offset, nbytes=nbytes, table=table))
        end = offset + nbytes
    return PackedLayout(places=tuple(places), payload_bytes=end + tail_bytes(placed))


def tail_bytes(placed: Sequence[PackedWeight]) -> int:
    """Zeros behind the last weight, a hole in the file: so much can a kernel read past the end of a panel
    when damage makes it see escapes that are not there.
    """
    widest = max((p.weight.k for p in placed if p.format.is_coded), default=0)
    return PANEL_ROWS * widest + OVERREAD_BYTES if widest else 0
