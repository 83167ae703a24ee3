"""Columns: which numbers of a value's rows a rank has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from firelane.program.values import Value

Columns = tuple[range, ...]
"""Ranges of a row, ascending and apart."""


def joined(ranges: Iterable[range]) -> Columns:
    """The columns that are in any of the ranges."""
    out = list[range]()
    for r in sorted((r for r in ranges if r), key=lambda r: r.start):
        if out and r.start <= out[-1].stop:
            out[-1] = range(out[-1].start, max(out[-1].stop, r.stop))
        else:
            out.append(r)
    return tuple(out)


def shifted(columns: Columns, by: int) -> Columns:
    return tuple(range(r.start + by, r.stop + by) for r in columns)


def width(columns: Columns) -> int:
    return sum(map(len, columns))


def units(columns: Columns, size: int) -> range | None:
    """The one run of whole units of that size, heads or groups, that the columns are; None if they are
    not."""
    if len(columns) != 1 or columns[0].start % size or columns[0].stop % size:
        return None
    return range(columns[0].start // size, columns[0].stop // size)


def of_units(run: range, size: int, first: int = 0) -> range:
    """The columns of a run of units, where the first unit of all begins at `first`."""
    return range(first + run.start * size, first + run.stop * size)


@dataclass(frozen=True)
class Held:
    """A rank's part of a value: `value` has these columns of the whole one, in this order."""

    value: Value
    columns: Columns

    def at(self, columns: Columns) -> int:
        """The place where `columns` begin in what the rank has; they lie there one behind the other."""
        first = columns[0].start
        before = sum(min(r.stop, first) - r.start for r in self.columns if r.start < first)
        inside = joined(
            range(max(r.start, first), min(r.stop, columns[-1].stop))
            for r in self.columns
            if r.stop > first and r.start < columns[-1].stop
        )
        assert inside == columns, f"{self.value.name}: {columns} are not beside each other in {self.columns}"
        return before
