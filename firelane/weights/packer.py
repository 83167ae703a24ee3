"""Packer: writes a checkpoint's weights in their packed form into a file, in parallel, a few panels at a
time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.weights.checkpoint import Checkpoint
from firelane.weights.formats import PANEL_ROWS, Format, Segment, pack, pack_panel, segments
from firelane.weights.plan import PackedWeight
from firelane.weights.progress import Progress

TASK_BYTES = 32 << 20
STAGE = "pack"


@dataclass(frozen=True)
class Task:
    """Panels first .. last - 1 of a matrix, or a whole vector."""

    packed: PackedWeight
    first: int
    last: int


class Packer:
    """Packs into `fd`, whose space is already allocated and reads as zeros. Owns nothing: the caller closes
    the file.
    """

    def __init__(self, checkpoint: Checkpoint, fd: int, *, total_bytes: int, progress: Progress) -> None:
        self._checkpoint = checkpoint
        self._fd = fd
        self._total_bytes = total_bytes
        self._progress = progress
        self._done_bytes = 0
        self._lock = Lock()

    def run(self, placed: tuple[PackedWeight, ...], *, threads: int) -> None:
        """Raises CheckpointError for a NaN or infinite weight, OSError when the file cannot be written."""
        with ThreadPoolExecutor(threads, thread_name_prefix="pack") as pool:
            try:
                futures = [pool.submit(self._run_task, task) for p in placed for task in _tasks(p)]
                for future in as_completed(futures):
                    future.result()
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def _run_task(self, task: Task) -> None:
        p = task.packed
        if p.format is Format.VECTOR_F32:
            written = _write(self._fd, self._vector(p), p.offset)
        else:
            written = self._write_panels(task)
        with self._lock:
            self._done_bytes += written
            self._progress(STAGE, self._done_bytes, self._total_bytes, "B")

    def _vector(self, p: PackedWeight) -> NDArray[Any]:
        parts = [self._source(name, Format.VECTOR_F32) for name in p.weight.tensors]
        for name, part in zip(p.weight.tensors, parts, strict=True):
            self._check_finite(name, part)
        return pack(parts, p.format, interleave=p.interleave)

    def _write_panels(self, task: Task) -> int:
        p = task.packed
        sources = [self._source(name, p.format) for name in p.weight.tensors]
        panel = np.zeros(p.shape[1:], p.format.dtype)
        pieces = _pieces(p, task.first, task.last)
        for index in range(task.first, task.last):
            if sum(s.count for s in pieces[index - task.first]) < PANEL_ROWS:
                panel[...] = 0
            for s in pieces[index - task.first]:
                rows = sources[s.part][s.source : s.source + s.count]
                rows = rows if rows.dtype == panel.dtype else rows.astype(np.float32)
                self._check_finite(p.weight.tensors[s.part], rows)
                pack_panel(panel, s.row % PANEL_ROWS, rows)
            _write(self._fd, panel, p.offset + index * panel.nbytes)
        return (task.last - task.first) * panel.nbytes

    def _source(self, name: str, format_: Format) -> NDArray[Any]:
        """The tensor as bits of bf16 or as floats; bf16 that is to become float32 is widened here."""
        tensor = self._checkpoint.tensor(name)
        if format_ is not Format.PANEL_BF16 and tensor.dtype == np.uint16:
            return (tensor.astype(np.uint32) << 16).view(np.float32)
        return tensor if format_ is not Format.VECTOR_F32 else tensor.astype(np.float32)

    def _check_finite(self, name: str, rows: NDArray[Any]) -> None:
        if rows.dtype == np.uint16:
            finite = int((rows & 0x7FFF).max(initial=0)) < 0x7F80
        else:
            finite = bool(np.isfinite(rows).all())
        if not finite:
            where = self._checkpoint.directory
            raise CheckpointError(
                f"{where}: tensor {name} holds NaN or infinite weights; download the model again"
            )


def _tasks(p: PackedWeight) -> Iterator[Task]:
    if p.format is Format.VECTOR_F32:
        yield Task(p, 0, 1)
        return
    panels = p.shape[0]
    step = max(1, TASK_BYTES // (p.nbytes // panels))
    for first in range(0, panels, step):
        yield Task(p, first, min(first + step, panels))


def _pieces(p: PackedWeight, first: int, last: int) -> list[list[Segment]]:
    """The segments of each panel first .. last - 1, cut at panel borders."""
    pieces: list[list[Segment]] = [[] for _ in range(first, last)]
    for s in segments(p.weight.parts, interleave=p.interleave):
        row = max(s.row, first * PANEL_ROWS)
        stop = min(s.row + s.count, last * PANEL_ROWS)
        while row < stop:
            count = min(stop, (row // PANEL_ROWS + 1) * PANEL_ROWS) - row
            pieces[row // PANEL_ROWS - first].append(Segment(row, s.part, s.source + row - s.row, count))
            row += count
    return pieces


def _write(fd: int, array: NDArray[Any], offset: int) -> int:
    data = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
    return done
