"""The time that each stage of loading weights takes by itself: which of them a start waits for."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.loading.packing import MatrixPacker
from firelane.backends.cuda.loading.reading import Portion, PortionReader, Slot, portions
from firelane.backends.cuda.weights.placement import Placement, placements
from firelane.program.program import Program
from firelane.weights.checkpoints.checkpoint import Checkpoint


@dataclass(frozen=True, kw_only=True)
class LoadStages:
    """Seconds, and the bytes that come to the device. load_weights() overlaps reading with the other two."""

    read_s: float
    copy_s: float
    pack_s: float
    nbytes: int


def time_stages(
    program: Program, checkpoint: Checkpoint, device: Device, *, mode: str = "auto", threads: int = 8
) -> LoadStages:
    """Reads the checkpoint as load_weights() does, into pinned memory that is thrown away; copies as many
    bytes to the device; packs normal weights of the same shapes. Raises as load_weights()."""
    placed = placements(program, mode)
    wanted = [portion for p in placed for portion in portions(p)]
    return LoadStages(
        read_s=_read(checkpoint, device, wanted, threads),
        copy_s=_copy(device, wanted),
        pack_s=_pack(device, placed),
        nbytes=sum(portion.nbytes for portion in wanted),
    )


def _read(checkpoint: Checkpoint, device: Device, wanted: list[Portion], threads: int) -> float:
    longest = max(portion.nbytes for portion in wanted)
    reader = PortionReader(checkpoint, device, threads=threads, longest=longest)
    began_s = time.perf_counter()
    for _ in reader.read(wanted):
        pass
    return time.perf_counter() - began_s


def _copy(device: Device, wanted: list[Portion]) -> float:
    longest = max(portion.nbytes for portion in wanted)
    target = device.empty(longest, dtype=torch.uint8)
    source = Slot(longest, device).memory
    began_s = time.perf_counter()
    for portion in wanted:
        device.upload(target[: portion.nbytes], source[: portion.nbytes])
    _finish(device)
    return time.perf_counter() - began_s


def _pack(device: Device, placed: tuple[Placement, ...]) -> float:
    packer = MatrixPacker(device, placed)
    seconds = 0.0
    for p in placed:
        if p.is_matrix:
            words = packer.place(p).normal_(0, 0.02)
            _finish(device)
            began_s = time.perf_counter()
            packer.pack(p, words)
            _finish(device)
            seconds += time.perf_counter() - began_s
    return seconds


def _finish(device: Device) -> None:
    device.mark().wait()
