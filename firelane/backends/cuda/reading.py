"""Reading a checkpoint into pinned memory, ahead of the copies to the device.

Threads read pieces of some MiB, each into a slot of its own: straight from the drive or the page cache where
the file holds a weight as the device wants it, decoded or converted and padded where not. Pieces come out in
order. A slot is read into again when the copy out of it has ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device import Device, Fence
from firelane.backends.cuda.placement import Placement
from firelane.errors import CheckpointError
from firelane.weights.checkpoint import Checkpoint
from firelane.weights.panels import is_finite
from firelane.weights.reader import ReadBuffer

PIECE_BYTES = 4 << 20
SLOTS_PER_THREAD = 3  # one is read into, one waits its turn, one is copied
AS_STORED = {torch.bfloat16: "BF16", torch.float32: "F32"}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Rows first .. last - 1 of a checkpoint tensor; they go to `offset`, in bytes of the weight's array."""

    placement: Placement
    tensor: str
    first: int
    last: int
    offset: int

    @property
    def nbytes(self) -> int:
        """On the device."""
        return (self.last - self.first) * self.placement.row_bytes


@dataclass(frozen=True, kw_only=True)
class Filled:
    """A piece that was read: data is uint8 [piece.nbytes], pinned, and ends with the slot's turn."""

    piece: Piece
    data: Tensor
    slot: Slot


class Slot:
    """Pinned memory for one piece at a time. `fence`: what has to end before it is written again."""

    __slots__ = ("buffer", "fence", "memory")

    def __init__(self, nbytes: int, device: Device) -> None:
        self.memory = device.pinned(ReadBuffer.memory_bytes(nbytes), dtype=torch.uint8)
        self.buffer = ReadBuffer(nbytes, self.memory.numpy())
        self.fence: Fence | None = None

    def view(self, array: NDArray[np.uint8]) -> Tensor:
        """The part of `memory` that `array` is."""
        first = array.ctypes.data - self.memory.data_ptr()
        return self.memory[first : first + array.nbytes]


def pieces(placement: Placement, piece_bytes: int = PIECE_BYTES) -> Iterator[Piece]:
    """All of a weight, in order, about piece_bytes each and at least a row."""
    step = max(1, piece_bytes // placement.row_bytes)
    weight = placement.weight
    for name, at, rows in zip(weight.tensors, placement.first_rows, weight.parts, strict=True):
        for first in range(0, rows, step):
            yield Piece(
                placement=placement,
                tensor=name,
                first=first,
                last=min(first + step, rows),
                offset=(at + first) * placement.row_bytes,
            )


class PieceReader:
    """Reads pieces of one checkpoint. Owns its slots."""

    def __init__(self, checkpoint: Checkpoint, device: Device, *, threads: int, longest: int) -> None:
        """longest: bytes of the longest piece."""
        self._checkpoint = checkpoint
        self._threads = threads
        self._slots = [Slot(longest, device) for _ in range(SLOTS_PER_THREAD * threads)]

    def read(self, wanted: Iterable[Piece]) -> Generator[Filled]:
        """Each piece in turn; its slot is taken again when the one behind it is asked for, and its fence, if
        it was given one, has ended. Raises CheckpointError.
        """
        pool = ThreadPoolExecutor(self._threads, thread_name_prefix="read")
        waiting: deque[Future[Filled]] = deque()
        try:
            for number, piece in enumerate(wanted):
                if len(waiting) == len(self._slots):
                    yield waiting.popleft().result()
                slot = self._slots[number % len(self._slots)]
                waiting.append(pool.submit(self._fill, piece, slot))
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _fill(self, piece: Piece, slot: Slot) -> Filled:
        if slot.fence is not None:
            slot.fence.wait()
            slot.fence = None
        place = piece.placement
        stored = self._checkpoint.dtype(piece.tensor)
        if place.k == place.padded_k and stored == AS_STORED[place.dtype]:
            rows = self._checkpoint.rows(piece.tensor, piece.first, piece.last, slot.buffer)
            data = slot.view(rows.reshape(-1).view(np.uint8))
        else:
            rows = self._checkpoint.rows(piece.tensor, piece.first, piece.last)
            data = _convert(rows, piece, slot)
        if not place.is_matrix and not is_finite(rows):  # matrices are checked on the device
            raise not_finite(self._checkpoint, piece.tensor)
        return Filled(piece=piece, data=data, slot=slot)


def not_finite(checkpoint: Checkpoint, tensor: str) -> CheckpointError:
    return CheckpointError(
        f"{checkpoint.directory}: tensor {tensor} holds NaN or infinite weights; download the model again"
    )


def _convert(rows: NDArray[np.generic], piece: Piece, slot: Slot) -> Tensor:
    """`rows` in the slot as the device wants them, inputs padded with zeros."""
    place = piece.placement
    dtype = np.uint16 if place.dtype is torch.bfloat16 else np.float32
    raw = slot.buffer.pages[: piece.nbytes]
    out = raw.view(dtype).reshape(piece.last - piece.first, place.padded_k)
    out[:, place.k :] = 0
    flat = rows.reshape(len(out), place.k)
    if dtype is np.float32 and flat.dtype == np.uint16:
        flat = (flat.astype(np.uint32) << 16).view(np.float32)
    out[:, : place.k] = flat
    return slot.view(raw)
