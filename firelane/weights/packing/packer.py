"""Packer: writes a checkpoint's weights in their packed form into a file, in parallel, a few panels at a
time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from itertools import accumulate
from queue import SimpleQueue
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.native.pages import PageCacheFile
from firelane.program.recipes import Piece, widened
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.coded import Bytes
from firelane.weights.formats.coded_native import CodedLibrary
from firelane.weights.formats.codes import Codes, stacked
from firelane.weights.formats.formats import PANEL_ROWS, Format, pack, source_rows
from firelane.weights.formats.grouped import encode as encode_grouped
from firelane.weights.formats.grouped import fitted
from firelane.weights.packing.panels import Run, encode_run, is_finite
from firelane.weights.packing.pieces import read_codes, read_piece
from firelane.weights.packing.placer import PackTask, Placer, tasks
from firelane.weights.packing.plan import PackedWeight, plain_bytes
from firelane.weights.packing.source import MOST_ITEM_BYTES, ReadDigest, reads_of
from firelane.weights.progress import Progress
from firelane.weights.storage.reader import ReadBuffer

TASK_BYTES = 8 << 20
STAGE = "pack"
Encoder = Callable[[Bytes], tuple[NDArray[Any], NDArray[np.uint64]]]
"""Writes a task's bytes into a buffer, if they are panels; returns them, and where each panel ends."""


class Packer:
    """Packs into `fd`. Owns nothing: the caller closes the file. `library` None: in NumPy, slowly. `read`: of
    all that was read, in tasks of TASK_BYTES.
    """

    def __init__(
        self, checkpoint: Checkpoint, fd: int, *, library: CodedLibrary | None, progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._fd = fd
        self._library = library
        self._progress = progress
        self._placer = Placer()
        self._read: SimpleQueue[Bytes] = SimpleQueue()  # what a task reads into, one for each thread
        self._encoded: SimpleQueue[Bytes] = SimpleQueue()  # what it is encoded into, for those that compute
        self._total_bytes = self._done_bytes = 0
        self._lock = Lock()
        self._page_cache = PageCacheFile(fd)
        self.read = ReadDigest()

    def run(self, placed: tuple[PackedWeight, ...], *, threads: int) -> tuple[int, ...]:
        """Returns the size of each weight, from which layout.lay_out() tells where it lies; what lies between
        weights is not written. Raises CheckpointError for a NaN or infinite weight, OSError when the file
        cannot be written.
        """
        self._total_bytes = plain_bytes(placed)
        workers, width = threads + self._checkpoint.waiting, threads + 1
        self._placer = Placer(width)
        todo = list(tasks(placed, TASK_BYTES))
        longest = max((_most_bytes(task) for task in todo), default=0)
        most_read = max(map(_read_bytes, todo), default=0) if self._checkpoint.is_direct else 0
        for _ in range(workers):
            self._read.put(np.empty(most_read, np.uint8))
        for _ in range(width):
            self._encoded.put(np.empty(longest, np.uint8))
        with ThreadPoolExecutor(workers, thread_name_prefix="pack") as pool:
            try:
                futures = [pool.submit(self._run_task, task) for task in todo]
                for future in as_completed(futures):
                    future.result()
            except BaseException as error:
                self._placer.fail(error)
                pool.shutdown(cancel_futures=True)
                raise
        return self._placer.sizes

    def _run_task(self, task: PackTask) -> None:
        try:
            self._pack(task)
        except BaseException as error:
            self._placer.fail(error)
            raise
        p = task.packed
        with self._lock:
            self._done_bytes += p.plain_bytes // p.panels * (task.last - task.first)
            self._progress(STAGE, self._done_bytes, self._total_bytes, "B")

    def _pack(self, task: PackTask) -> None:
        memory = self._read.get()
        try:
            encode = self._encoder(task, memory)
            with self._placer.turn(task):
                self._write_encoded(task, encode)
        finally:
            self._read.put(memory)

    def _write_encoded(self, task: PackTask, encode: Encoder) -> None:
        buffer = self._encoded.get()
        try:
            data, ends = encode(buffer)
            placed = self._placer.place(task, ends)
            self._page_cache.prepare(placed.offset, data.nbytes)
            _write(self._fd, data, placed.offset)
            if placed.table is not None:
                _write(self._fd, placed.table, placed.table_offset)
        finally:
            self._encoded.put(buffer)

    def _encoder(self, task: PackTask, memory: Bytes) -> Encoder:
        """Reads what the task needs, into `memory` if that has any bytes."""
        if not task.packed.is_matrix:
            vector = self._vector(task)
            return lambda _: (vector, np.array([vector.nbytes], np.uint64))
        if task.packed.format.grouping is not None:
            return self._grouped(task)
        pieces, run = self._run_of(task, memory)
        return partial(self._encode, task, pieces, run)

    def _encode(
        self, task: PackTask, pieces: list[Piece], run: Run, buffer: Bytes
    ) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        try:
            ends = encode_run(run, task.packed.format, buffer, self._library)
        except ValueError:
            for piece, span in zip(pieces, run.spans, strict=True):
                self._check_finite(piece, span)
            raise
        return buffer[: int(ends[-1])], ends

    def _grouped(self, task: PackTask) -> Encoder:
        """An encoder of panels of the checkpoint's own codes."""
        p, grouping = task.packed, task.packed.format.grouping
        assert grouping is not None
        reads = reads_of(task)
        spans: list[Codes] = []
        for part, (_, piece, rows) in enumerate(reads):
            span = read_codes(self._checkpoint, piece, rows)
            self.read.add(task, part, span.data())
            spans.append(fitted(span, grouping))
        starts = np.array([first for first, _, _ in reads])
        wanted = source_rows(p.weight.rows, task.first * PANEL_ROWS, task.last * PANEL_ROWS, gated=p.gated)
        part = np.searchsorted(starts, wanted, side="right") - 1
        begins = np.cumsum([0, *(len(span.codes) for span in spans)])[:-1]
        rows = np.where(wanted < 0, -1, wanted - starts[part] + begins[part])
        return partial(self._encode_grouped, task, reads[0][1].tensor, stacked(spans), rows)

    def _encode_grouped(
        self, task: PackTask, tensor: str, codes: Codes, rows: NDArray[np.int64], buffer: Bytes
    ) -> tuple[NDArray[Any], NDArray[np.uint64]]:
        try:
            size = self._encode_groups(codes, rows, task.packed.format, buffer)
        except ValueError:
            raise not_finite(self._checkpoint, tensor) from None
        panels = task.last - task.first
        return buffer[:size], np.arange(1, panels + 1, dtype=np.uint64) * np.uint64(size // panels)

    def _encode_groups(self, codes: Codes, rows: NDArray[np.int64], format_: Format, out: Bytes) -> int:
        """Panels of these rows, -1 for zeros, at the beginning of `out`; returns their size."""
        if self._library is not None:
            return self._library.encode_groups(format_, codes, rows, out)
        data = encode_grouped(codes.taken(rows), format_)
        out[: len(data)] = data
        return len(data)

    def _run_of(self, task: PackTask, memory: Bytes) -> tuple[list[Piece], Run]:
        """Reads what the task needs of each piece, in one go where it is in one place. memory: to read into;
        of no bytes: wherever they are."""
        p = task.packed
        reads = reads_of(task)
        rooms = _rooms(task, memory) if len(memory) else [None] * len(reads)
        spans = [
            self._values(task, part, piece, rows, room)
            for part, ((_, piece, rows), room) in enumerate(zip(reads, rooms, strict=True))
        ]
        wanted = source_rows(p.weight.rows, task.first * PANEL_ROWS, task.last * PANEL_ROWS, gated=p.gated)
        starts = np.array([first for first, _, _ in reads])
        part = np.searchsorted(starts, wanted, side="right") - 1
        return [piece for _, piece, _ in reads], Run(spans=tuple(spans), part=part, row=wanted - starts[part])

    def _vector(self, task: PackTask) -> NDArray[Any]:
        parts: list[NDArray[Any]] = []
        for number, (_, piece, rows) in enumerate(reads_of(task)):
            values = self._values(task, number, piece, rows)
            self._check_finite(piece, values)
            parts.append(values)
        return pack(np.concatenate(parts), task.packed.format, gated=task.packed.gated)

    def _values(
        self, task: PackTask, part: int, piece: Piece, rows: range, room: ReadBuffer | None = None
    ) -> NDArray[Any]:
        values = read_piece(self._checkpoint, piece, rows, room)
        self.read.add(task, part, values)
        return _convert(values, task.packed.format)

    def _check_finite(self, piece: Piece, values: NDArray[Any]) -> None:
        if not is_finite(values):
            raise not_finite(self._checkpoint, piece.tensor)


def not_finite(checkpoint: Checkpoint, tensor: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.origin}: tensor {tensor} holds NaN or infinite weights; download the model again"
    )


def _read_bytes(task: PackTask) -> int:
    """Memory for all that a task reads at a time; vectors are read wherever they are."""
    return sum(map(ReadBuffer.memory_bytes, _sizes(task))) if task.packed.is_matrix else 0


def _rooms(task: PackTask, memory: Bytes) -> list[ReadBuffer]:
    """A part of the memory for each of the task's reads."""
    sizes = _sizes(task)
    begins = accumulate(map(ReadBuffer.memory_bytes, sizes), initial=0)
    return [ReadBuffer(size, memory[begin:]) for begin, size in zip(begins, sizes, strict=False)]


def _sizes(task: PackTask) -> list[int]:
    return [MOST_ITEM_BYTES * len(rows) * piece.width for _, piece, rows in reads_of(task)]


def _most_bytes(task: PackTask) -> int:
    return task.packed.panel_bounds[1] * (task.last - task.first)


def _convert(values: NDArray[Any], format_: Format) -> NDArray[Any]:
    """Values as bits of bf16 where the format keeps them, otherwise as float32."""
    if format_.plain is Format.PANEL_BF16:
        return values
    return widened(values)


def _write(fd: int, array: NDArray[Any], offset: int) -> None:
    data = array.reshape(-1).view(np.uint8).data
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)
