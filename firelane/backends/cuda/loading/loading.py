"""load_weights: a checkpoint's weights on the device, each in the form that --weights asks for.

While one portion is copied the next ones are read; a matrix is packed as soon as all of it has arrived.
Beside the weights this takes staging_bytes() of the device, and of pinned memory PORTION_BYTES for each of
SLOTS_PER_THREAD times the threads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.loading.packing import InfiniteWeightsError, MatrixPacker
from firelane.backends.cuda.loading.reading import Filled, PortionReader, not_finite, portions
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.backends.cuda.weights.placement import (
    Placement,
    may_be_coded,
    placements,
    planned_bytes,
    staging_bytes,
)
from firelane.backends.cuda.weights.quantised_weights import NOTHING_STORED, Stored
from firelane.errors import CheckpointError
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.packing.panels import is_finite
from firelane.weights.packing.pieces import read_piece
from firelane.weights.progress import Progress, silent

__all__ = ["load_weights", "may_be_coded", "planned_bytes", "staging_bytes"]

STAGE = "load"


def load_weights(
    program: Program,
    checkpoint: Checkpoint,
    device: Device,
    *,
    mode: str = "auto",
    stored: Mapping[str, Stored] = NOTHING_STORED,
    threads: int = 8,
    progress: Progress = silent,
) -> DeviceWeights:
    """The program's weights; to be called on the device's stream. The checkpoint was checked against
    the program. mode: as ExecutorConfig.weights. stored: weights that keep their codes.

    Raises CheckpointError for files that end too early or are damaged and for infinite weights,
    OutOfMemoryError.
    """
    placed = placements(program, mode, stored)
    wanted = [portion for p in placed for portion in portions(p)]
    longest = max((portion.nbytes for portion in wanted), default=0)
    reader = PortionReader(checkpoint, device, threads=threads, longest=longest)
    with closing(reader.read(wanted)) as filled:
        loader = WeightLoader(checkpoint, device, placed, progress)
        for p in placed:
            loader.load(p, filled)
    return loader.weights()


class WeightLoader:
    """Takes what was read to the device, weight after weight."""

    def __init__(
        self, checkpoint: Checkpoint, device: Device, placed: tuple[Placement, ...], progress: Progress
    ) -> None:
        self._checkpoint = checkpoint
        self._device = device
        self._packer = MatrixPacker(device, placed)
        self._progress = progress
        self._total_bytes = sum(p.weight.nbytes for p in placed)
        self._done_bytes = 0
        self._matrices: dict[str, Matrix] = {}
        self._vectors: dict[str, Tensor] = {}

    def load(self, p: Placement, filled: Iterator[Filled]) -> None:
        """`filled` gives the portions of `p` next."""
        targets = self._packer.place_codes(p, p.stored) if p.stored else [self._packer.place(p)]
        self._upload(p, targets, filled)
        if not p.is_matrix:
            self._vectors[p.weight.name] = targets[0].view(-1)
            return
        try:
            packed = self._packer.pack_codes(p, targets) if p.stored else self._packer.pack(p, targets[0])
            self._matrices[p.weight.name] = packed
        except InfiniteWeightsError as error:
            raise self._blame(p, error.blocks) from error

    def weights(self) -> DeviceWeights:
        return DeviceWeights(matrices=self._matrices, vectors=self._vectors)

    def _upload(self, p: Placement, targets: Sequence[Tensor], filled: Iterator[Filled]) -> None:
        """Each part of what is read to its rows of one of the targets."""
        sizes = p.row_parts
        rooms = [t.view(-1).view(torch.uint8).view(-1, n) for t, n in zip(targets, sizes, strict=True)]
        for _ in portions(p):
            read = next(filled)
            at, count = read.portion.at, len(read.portion.rows)
            for room, part in zip(rooms, read.parts, strict=True):
                read.slot.fence = self._device.upload(room[at : at + count].view(-1), part)
            self._done_bytes += len(read.portion.rows) * p.k * p.weight.dtype.itemsize
            self._progress(STAGE, self._done_bytes, self._total_bytes, "B")

    def _blame(self, p: Placement, blocks: list[int]) -> CheckpointError:
        """Name the tensor that has infinite weights in the first of these blocks."""
        begin = blocks[0] * ROW_BLOCK
        for portion in portions(p):
            at, rows = portion.at, portion.rows
            here = rows[max(begin - at, 0) : max(begin + ROW_BLOCK - at, 0)]
            if here and not is_finite(read_piece(self._checkpoint, portion.piece, here)):
                return not_finite(self._checkpoint, portion.piece.tensor)
        return CheckpointError(
            f"{self._checkpoint.directory}: {p.weight.name} arrived on the device other than it was read: "
            "load it again, and test the machine's memory if that does not help"
        )
