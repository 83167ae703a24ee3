"""Source of a packed file: what of the checkpoint was packed, to find out whether a checkpoint of the same
fingerprint is that one.

KEY.source.json, beside the packed file, holds a digest of all that packing read, and the stamps of files of
which it is known. A checkpoint of other stamps (a copy, a new image, an update in place) is read as a whole
once, while it is served.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from firelane.program.recipes import Piece
from firelane.storage import sync_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.formats import PANEL_ROWS, source_rows
from firelane.weights.packing.pieces import contiguous, read_codes, read_piece
from firelane.weights.packing.placer import PackTask, tasks
from firelane.weights.packing.plan import PackedWeight
from firelane.weights.storage import checked_json
from firelane.weights.storage.fingerprint import FileStamp
from firelane.weights.storage.reader import ReadBuffer

MOST_STAMPS = 16
MOST_ITEM_BYTES = 4
Stamps = dict[str, FileStamp]


class PackedSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The source of what was packed under `key`. digest: ReadDigest of tasks of task_bytes. stamps: by file
    name, of each checkpoint that was found to be it, the newest last. model: the directory of the first
    one."""

    key: str
    digest: str
    task_bytes: int
    stamps: list[Stamps]
    model: str = ""

    @classmethod
    def read(cls, packed: Path) -> PackedSource | None:
        """That of a packed file; None where there is no valid one."""
        found = checked_json.read(_path(packed), cls)
        return found if found is not None and found.key == packed.stem else None

    def write(self, packed: Path) -> None:
        """Raises OSError."""
        checked_json.write(_path(packed), self)

    @staticmethod
    def remove(packed: Path) -> None:
        """Delete the one of a packed file, for good, if there is one. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            _path(packed).unlink()
            sync_directory(packed.parent)

    def knows(self, stamps: Stamps) -> bool:
        """Whether files of these stamps can only be what was packed."""
        return stamps in self.stamps and all(stamp.is_evidence for stamp in stamps.values())


class ReadDigest:
    """A digest of what tasks read, in whatever order they do; safe from many threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._sum = 0

    def add(self, task: PackTask, part: int, values: NDArray[Any]) -> None:
        """`part` counts what the task reads."""
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8).data
        found = xxhash.xxh3_64_intdigest(data, seed=(task.number << 20) + part)
        with self._lock:
            self._sum = (self._sum + found) % (1 << 64)

    def hexdigest(self) -> str:
        return f"{self._sum:016x}"


def reads_of(task: PackTask) -> list[tuple[int, Piece, range]]:
    """Which rows of which pieces a task needs, and the first row of each in the weight."""
    p = task.packed
    if not p.is_matrix:
        return [(0, piece, range(piece.height)) for piece in p.weight.pieces]
    wanted = source_rows(p.weight.rows, task.first * PANEL_ROWS, task.last * PANEL_ROWS, gated=p.gated)
    return list(contiguous(p.weight, wanted))


def read_rows(
    checkpoint: Checkpoint, task: PackTask, piece: Piece, rows: range, buffer: ReadBuffer | None = None
) -> NDArray[Any]:
    """Numbers of these rows that are digested: as read_piece(), of codes their bytes."""
    if task.packed.format.grouping is not None:
        return read_codes(checkpoint, piece, rows).data()
    return read_piece(checkpoint, piece, rows, buffer)


def is_source(
    packed: Path,
    placed: tuple[PackedWeight, ...],
    checkpoint: Checkpoint,
    stopped: Callable[[], bool] = lambda: False,
) -> bool:
    """Whether `packed` was made of this very checkpoint. Where its stamps do not tell, all of it is read,
    unless it is `stopped`, and they are noted. Raises CheckpointError where it cannot be read.
    """
    source, stamps = PackedSource.read(packed), checkpoint.stamps
    if source is None or source.knows(stamps) or not checkpoint.is_sampled:
        return source is not None
    digest, todo = ReadDigest(), [(task, reads_of(task)) for task in tasks(placed, source.task_bytes)]
    longest = max((len(rows) * piece.width for _, reads in todo for _, piece, rows in reads), default=0)
    buffer = ReadBuffer(MOST_ITEM_BYTES * longest)  # not the mapping: the file may be cut short meanwhile
    for task, reads in todo:
        for part, (_, piece, rows) in enumerate(reads):
            if stopped():
                return True
            digest.add(task, part, read_rows(checkpoint, task, piece, rows, buffer))
    if digest.hexdigest() != source.digest:
        return False
    if checkpoint.is_unchanged():
        known = [s for s in source.stamps if s != stamps][-MOST_STAMPS + 1 :]
        with contextlib.suppress(OSError):  # it is read again the next time
            msgspec.structs.replace(source, stamps=[*known, stamps]).write(packed)
    return True


def _path(packed: Path) -> Path:
    return packed.with_suffix(".source.json")
