"""Tables on disk: `<cache>/tuning/<key>.json`, one for each machine, compiler, kernels and set of products.

A file is read only if it is exactly what was written, under its own key, with every cell that a measurement
has and no other, and figures that can be. Anything else counts as absent, and is measured again.
"""

from __future__ import annotations

import contextlib
import fcntl
import math
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from firelane.backends.cpu import sealed
from firelane.backends.cpu.tuning.table import Cell

VERSION = 1


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured under `key`, in `seconds`."""

    version: int
    key: str
    seconds: float
    cells: list[Cell]


def path_of(cache_dir: Path, key: str) -> Path:
    return cache_dir / "tuning" / f"{key}.json"


def read(path: Path, key: str, expected: set[tuple[str, str, int, bool]]) -> Table | None:
    """The table, or None where it is absent or not what `write` wrote. expected: the cells that it must have,
    as `identity` gives them."""
    table = sealed.read(path, Table)
    whole = (
        table is not None
        and table.version == VERSION
        and table.key == key
        and len(table.cells) == len(expected)
        and {identity(cell) for cell in table.cells} == expected
        and all(_is_sane(cell) for cell in table.cells)
    )
    return table if whole else None


def write(path: Path, key: str, cells: Sequence[Cell], seconds: float) -> None:
    """Raises OSError."""
    sealed.write(path, Table(version=VERSION, key=key, seconds=round(seconds, 2), cells=list(cells)))


@contextlib.contextmanager
def locked(path: Path) -> Generator[None]:
    """One tuner at a time, where the file system has locks: two would disturb each other."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.with_suffix(".lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def identity(cell: Cell) -> tuple[str, str, int, bool]:
    return cell.projection, cell.form, cell.rows, cell.once


def _is_sane(cell: Cell) -> bool:
    figures = (cell.seconds, cell.gain, cell.error)
    return all(map(math.isfinite, figures)) and cell.seconds > 0 and cell.gain > 0 <= cell.error
