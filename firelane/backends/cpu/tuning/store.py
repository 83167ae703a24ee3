"""Tables on disk: `<cache>/tuning/<key>.json`, one for each machine, compiler, kernels and set of products.

A file is read only if it is exactly what was written: the digest of its cells, the key, every cell that a
measurement has and no other, figures that can be. Anything else counts as absent, and is measured again.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import math
import os
import tempfile
from collections.abc import Generator, Sequence
from pathlib import Path

import msgspec

from firelane.backends.cpu.tuning.table import Cell

VERSION = 1
MOST_BYTES = 1 << 22


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was measured under `key`, in `seconds`. digest: SHA-256 of the cells as JSON."""

    version: int
    key: str
    digest: str
    seconds: float
    cells: list[Cell]


def path_of(cache_dir: Path, key: str) -> Path:
    return cache_dir / "tuning" / f"{key}.json"


def read(path: Path, key: str, expected: set[tuple[str, str, int, bool]]) -> Table | None:
    """The table, or None where it is absent or not what `write` wrote. expected: the cells that it must have,
    as `identity` gives them."""
    try:
        with path.open("rb") as file:
            table = msgspec.json.decode(file.read(MOST_BYTES), type=Table)
    except (OSError, ValueError, msgspec.MsgspecError, RecursionError):
        return None
    whole = (
        table.version == VERSION
        and table.key == key
        and table.digest == _digest(table.cells)
        and len(table.cells) == len(expected)
        and {identity(cell) for cell in table.cells} == expected
        and all(_is_sane(cell) for cell in table.cells)
    )
    return table if whole else None


def write(path: Path, key: str, cells: Sequence[Cell], seconds: float) -> None:
    """Into a temporary file, then renamed. Raises OSError."""
    table = Table(
        version=VERSION, key=key, digest=_digest(cells), seconds=round(seconds, 2), cells=list(cells)
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    fd, name = tempfile.mkstemp(prefix=f"{key}.", suffix=".tmp", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(table), indent=1) + b"\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


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


def _digest(cells: Sequence[Cell]) -> str:
    return hashlib.sha256(msgspec.json.encode(list(cells))).hexdigest()


def _is_sane(cell: Cell) -> bool:
    figures = (cell.seconds, cell.gain, cell.error)
    return all(map(math.isfinite, figures)) and cell.seconds > 0 and cell.gain > 0 <= cell.error
