"""Rows that go from stage to stage: where each value lies in what a rank sends, and in what it receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.device.device import Device, StageLink, Transfer
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.shapes import STRIDE_ELEMENTS, round_up
from firelane.backends.cuda.exchange import ExchangedRows, end_of, view_of
from firelane.program.ops import Receive, Send
from firelane.program.program import Program
from firelane.program.values import Rows, Value


@dataclass(frozen=True, kw_only=True)
class StageRows:
    """Places of rows, sent and received, by value, in the order of the ops, which is that of the transfers.
    link: None of a model that is one stage. A stage lays out what it sends as the next one what it receives:
    both know the values and the most rows of a step."""

    link: StageLink | None
    sent: Mapping[Value, ExchangedRows]
    received: Mapping[Value, ExchangedRows]

    @classmethod
    def allocate(cls, program: Program, max_rows: Mapping[Rows, int], device: Device) -> StageRows:
        sent, sent_bytes = _laid_out([op.x for op in program.ops if isinstance(op, Send)], max_rows)
        received, received_bytes = _laid_out(
            [op.out for op in program.ops if isinstance(op, Receive)], max_rows
        )
        nbytes = max(sent_bytes, received_bytes)
        link = device.stage_link(nbytes, received=len(received)) if nbytes else None
        return cls(link=link, sent=sent, received=received)

    def sending(self, value: Value, rows: int) -> tuple[Work, Tensor, Work]:
        """Work after which rows may be written, where: [rows, stride], and work that hands `rows` of them
        on."""
        assert self.link is not None
        number, place = _numbered(self.sent, value)
        return _rows(self.link.send(number, place.first, place.nbytes(value, rows)), value, place)

    def receiving(self, value: Value, rows: int) -> tuple[Work, Tensor, Work]:
        """Work after which so many rows are there, where: [rows, stride], and work that gives the place
        back."""
        assert self.link is not None
        number, place = _numbered(self.received, value)
        return _rows(self.link.receive(number, place.first, place.nbytes(value, rows)), value, place)


def _laid_out(
    values: Sequence[Value], max_rows: Mapping[Rows, int]
) -> tuple[dict[Value, ExchangedRows], int]:
    """Places of values one behind the other, and where the last one ends."""
    places: dict[Value, ExchangedRows] = {}
    end = 0
    for value in values:
        stride = round_up(value.width, STRIDE_ELEMENTS)
        places[value] = ExchangedRows(first=end, stride=stride, rows=max_rows[value.rows])
        end = end_of(value, places[value])
    return places, end


def _numbered(places: Mapping[Value, ExchangedRows], value: Value) -> tuple[int, ExchangedRows]:
    return list(places).index(value), places[value]


def _rows(transfer: Transfer, value: Value, place: ExchangedRows) -> tuple[Work, Tensor, Work]:
    return transfer.before, view_of(transfer.memory, value, place), transfer.after
