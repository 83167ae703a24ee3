"""The GPU of a rank, and its place among the others."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch

from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device.faults import translated
from firelane.backends.cuda.peers import RankPeers
from firelane.backends.ranks.process import RankEndedError
from firelane.parallel.ranks import RankLayout


@contextmanager
def gpu_of(rank: int, layout: RankLayout, meeting: Path, *, gathers: bool = False) -> Generator[CudaDevice]:
    """GPU number `rank` of those that this process sees, which is the thread's current one from now on.
    layout, meeting, gathers: as of RankPeers. Raises MachineError. Where it is left with RankEndedError, a
    thread may be waiting for that rank: the group is not taken apart, which would wait, too."""
    with translated(f"opening GPU {rank}"):
        torch.cuda.set_device(rank)
    peers = RankPeers(rank, layout, meeting, torch.device("cuda", rank), gathers=gathers)
    is_whole = True
    try:
        yield CudaDevice(rank, peers)
    except RankEndedError:
        is_whole = False
        raise
    finally:
        if is_whole:
            peers.close()
