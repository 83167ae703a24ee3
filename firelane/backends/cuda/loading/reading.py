"""Reading a checkpoint into pinned memory, ahead of the copies to the device.

Threads read portions of some MiB, each into a slot of its own: straight from the drive or the page cache
where the file holds a weight as the device wants it, decoded or converted and padded where not. Portions
come out in order. A slot is read into again when the copy out of it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device.device import Device, Fence
from firelane.backends.cuda.weights.placement import Placement
from firelane.backends.cuda.weights.quantised_weights import read_quantised
from firelane.errors import CheckpointError
from firelane.program.recipes import Piece, widened
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.packing.panels import is_finite
from firelane.weights.packing.pieces import read_piece
from firelane.weights.storage.reader import ReadBuffer

PORTION_BYTES = 4 << 20
SLOTS_PER_THREAD = 3  # one is read into, one waits its turn, one is copied
AS_STORED = {torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True, kw_only=True)
class Portion:
    """Rows of one piece of a weight; they go to the device from row `at` on."""

    placement: Placement
    piece: Piece
    rows: range
    at: int

    @property
    def nbytes(self) -> int:
        """On the device."""
        return len(self.rows) * self.placement.row_bytes


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A portion that was read: data is uint8 [portion.nbytes], pinned, and ends with the slot's turn; its
    rows of one array stand behind those of the other."""

    portion: Portion
    data: Tensor
    slot: Slot

    @property
    def parts(self) -> Iterator[Tensor]:
        """The data of each array that the weight is read into."""
        begin = 0
        for row_bytes in self.portion.placement.row_parts:
            end = begin + row_bytes * len(self.portion.rows)
            yield self.data[begin:end]
            begin = end


class Slot:
    """Pinned memory for one portion at a time. `fence`: what has to end before it is written again."""

    __slots__ = ("buffer", "fence", "memory")

    def __init__(self, nbytes: int, device: Device) -> None:
        self.memory = device.pinned(ReadBuffer.memory_bytes(nbytes), dtype=torch.uint8)
        self.buffer = ReadBuffer(nbytes, self.memory.numpy())
        self.fence: Fence | None = None

    def view(self, array: NDArray[np.uint8]) -> Tensor:
        """The part of `memory` that `array` is, or else a copy of it there."""
        first = array.ctypes.data - self.memory.data_ptr()
        if not 0 <= first <= self.memory.nbytes - array.nbytes:
            copy = self.buffer.pages[: array.nbytes]
            copy[:] = array
            return self.view(copy)
        return self.memory[first : first + array.nbytes]


def portions(placement: Placement, portion_bytes: int = PORTION_BYTES) -> Iterator[Portion]:
    """All of a weight, in order, about portion_bytes each and at least a row."""
    step = max(1, portion_bytes // placement.row_bytes)
    for segment in placement.segments:
        at = segment.at
        for piece, within in placement.weight.spans(segment.rows.start, segment.rows.stop):
            for first in within[::step]:
                rows = range(first, min(first + step, within.stop))
                yield Portion(placement=placement, piece=piece, rows=rows, at=at)
                at += len(rows)


class PortionReader:
    """Reads portions of one checkpoint's weights. Owns its slots."""

    def __init__(self, checkpoint: Checkpoint, device: Device, *, threads: int, longest: int) -> None:
        """longest: bytes of the longest portion."""
        self._checkpoint = checkpoint
        self._threads = threads
        self._slots = [Slot(longest, device) for _ in range(SLOTS_PER_THREAD * threads)]

    def read(self, wanted: Iterable[Portion]) -> Generator[Filled]:
        """Each portion in turn; its slot is taken again when the one behind it is asked for, and its fence,
        if it was given one, has ended. Raises CheckpointError.
        """
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read")
        waiting: deque[Future[Filled]] = deque()
        try:
            for number, portion in enumerate(wanted):
                if len(waiting) == len(self._slots):
                    yield waiting.popleft().result()
                slot = self._slots[number % len(self._slots)]
                waiting.append(pool.submit(self._fill, portion, slot))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, portion: Portion, slot: Slot) -> Filled:
        if slot.fence is not None:
            slot.fence.wait()
            slot.fence = None
        place, piece = portion.placement, portion.piece
        if place.stored is not None:
            try:
                arrays = read_quantised(self._checkpoint, piece, portion.rows, place.stored, place.padded_k)
            except ValueError as error:
                raise not_finite(self._checkpoint, piece.tensor) from error
            return Filled(portion=portion, data=_copied(arrays, portion, slot), slot=slot)
        stored = self._checkpoint.dtype(piece.tensor)
        if place.k == place.padded_k and piece.is_as_stored and stored == AS_STORED[place.dtype]:
            rows = read_piece(self._checkpoint, piece, portion.rows, slot.buffer)
            data = slot.view(rows.reshape(-1).view(np.uint8))
        else:
            rows = read_piece(self._checkpoint, piece, portion.rows)
            data = _convert(rows, portion, slot)
        if not place.is_matrix and not is_finite(rows):  # matrices are checked on the device
            raise not_finite(self._checkpoint, piece.tensor)
        return Filled(portion=portion, data=data, slot=slot)


def not_finite(checkpoint: Checkpoint, tensor: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.directory}: tensor {tensor} holds NaN or infinite weights; download the model again"
    )


def _copied(arrays: Iterable[NDArray[Any]], portion: Portion, slot: Slot) -> Tensor:
    """The arrays in the slot, one behind the other."""
    raw = slot.buffer.pages[: portion.nbytes]
    np.concatenate([array.reshape(-1).view(np.uint8) for array in arrays], out=raw)
    return slot.view(raw)


def _convert(rows: NDArray[Any], portion: Portion, slot: Slot) -> Tensor:
    """`rows` in the slot as the device wants them, inputs padded with zeros."""
    place = portion.placement
    dtype = np.uint16 if place.dtype is torch.bfloat16 else np.float32
    raw = slot.buffer.pages[: portion.nbytes]
    out = raw.view(dtype).reshape(len(portion.rows), place.padded_k)
    out[:, place.k :] = 0
    flat = rows.reshape(len(out), place.k)
    out[:, : place.k] = widened(flat) if dtype is np.float32 else flat
    return slot.view(raw)
