"""The GPU of a rank, and its place among the others."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.faults import translated
from firelane.backends.cuda.peers import Peers


@contextmanager
def gpu_of(rank: int, ranks: int, meeting: Path, *, gathers: bool = False) -> Generator[CudaDevice]:
    """GPU number `rank` of those that this process sees, which is the thread's current one from now on.
    meeting, gathers: as of Peers. Raises MachineError."""
    with translated(f"opening GPU {rank}"):
        torch.cuda.set_device(rank)
    peers = Peers(rank, ranks, meeting, torch.device("cuda", rank), gathers=gathers)
    try:
        yield CudaDevice(rank, peers)
    finally:
        peers.close()
