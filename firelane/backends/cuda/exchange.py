"""RankExchange: the memory in which ranks leave rows for each other.

All-reduces take two places by turns: a rank that writes to one again has met the others since, at the
collective between, so all have read what lay there. Behind the last one of a step comes the meeting for its
logits; or, of a stage that has none, the next step's first, which takes the other place unless their number
is odd: then the ranks meet once more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.device.device import Device, Shared
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.shapes import STRIDE_ELEMENTS, round_up
from firelane.backends.cuda.step.kv_pages import DTYPES
from firelane.program.ops import AllReduce, Gather
from firelane.program.program import Program
from firelane.program.values import Rows, Value

GRAIN_BYTES = 512


@dataclass(frozen=True, kw_only=True)
class ExchangedRows:
    """Rows of one value in the memory of each rank; stride: in elements, the same on all."""

    first: int
    stride: int
    rows: int

    def nbytes(self, value: Value, rows: int | None = None) -> int:
        return (self.rows if rows is None else rows) * self.stride * value.dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class RankExchange:
    """shared: None of a program without collectives. places: by value that this rank leaves. last: the value
    behind whose sum all have to meet again."""

    shared: Shared | None
    places: Mapping[Value, ExchangedRows]
    last: Value | None = None

    @classmethod
    def allocate(cls, program: Program, max_rows: Mapping[Rows, int], device: Device) -> RankExchange:
        sums = [op for op in program.ops if isinstance(op, AllReduce)]
        gathered = [op for op in program.ops if isinstance(op, Gather)]
        if not sums:
            return cls(shared=None, places={})
        apart = max(_nbytes(op.x, op.x.width, max_rows) for op in sums)
        places = {
            op.x: ExchangedRows(
                first=number % 2 * apart, stride=_stride(op.x.width), rows=max_rows[op.x.rows]
            )
            for number, op in enumerate(sums)
        }
        end = 2 * apart
        for op in gathered:
            width = max(op.widths)
            places[op.x] = ExchangedRows(first=end, stride=_stride(width), rows=max_rows[op.x.rows])
            end += _nbytes(op.x, width, max_rows)
        last = sums[-1].x if len(sums) % 2 and not gathered else None
        return cls(shared=device.shared(end, ranks=sums[0].ranks), places=places, last=last)

    @property
    def values(self) -> dict[Value, Tensor]:
        """The rows that this rank leaves: [max rows, stride]."""
        if self.shared is None:
            return {}
        mine = self.shared.mine
        return {v: view_of(mine[p.first : p.first + p.nbytes(v)], v, p) for v, p in self.places.items()}

    def meeting(self, value: Value, rows: int) -> tuple[Work, list[Tensor]]:
        """Work after which all ranks have left `rows` rows, and those of each rank: [rows, stride]."""
        assert self.shared is not None
        place = self.places[value]
        work, found = self.shared.meeting(place.first, place.nbytes(value, rows))
        return work, [view_of(part, value, place) for part in found]

    def closing(self, value: Value) -> list[Work]:
        """Work behind the sum of `value`."""
        if value != self.last or self.shared is None:
            return []
        work, _ = self.shared.meeting(self.places[value].first, GRAIN_BYTES)
        return [work]


def view_of(data: Tensor, value: Value, place: ExchangedRows) -> Tensor:
    """Bytes of a place as rows: [rows, stride]."""
    return data.view(DTYPES[value.dtype]).view(-1, place.stride)


def end_of(value: Value, place: ExchangedRows) -> int:
    """The first byte behind a place, where another one may begin."""
    return place.first + round_up(place.nbytes(value), GRAIN_BYTES)


def _stride(width: int) -> int:
    return round_up(width, STRIDE_ELEMENTS)


def _nbytes(value: Value, width: int, max_rows: Mapping[Rows, int]) -> int:
    return round_up(max_rows[value.rows] * _stride(width) * value.dtype.itemsize, GRAIN_BYTES)
