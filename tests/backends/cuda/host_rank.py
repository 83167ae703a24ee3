"""A rank on CPU tensors, every kernel in the interpreter: python -m tests.backends.cuda.host_rank FD."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported

import torch

from firelane.backends.cuda.device.device import Shared, StageLink
from firelane.backends.cuda.peers import RankPeers
from firelane.backends.cuda.ranks.worker import main
from firelane.parallel.ranks import RankLayout
from tests.backends.cuda import interpreter
from tests.backends.cuda.host_device import HostDevice
from tests.backends.cuda.lean import lean

MODULE = "tests.backends.cuda.host_rank"


class HostPeer(HostDevice):
    """Device of one of several processes, which gloo brings together."""

    def __init__(self, peers: RankPeers) -> None:
        super().__init__(warm=False, memory_bytes=2 << 30)
        self._peers = peers

    def shared(self, nbytes: int, *, ranks: int) -> Shared:
        assert ranks == self._peers.layout.lanes
        return self._peers.share(nbytes)

    def stage_link(self, nbytes: int, *, received: int) -> StageLink:
        return self._peers.link_stages(nbytes, received)


@contextmanager
def peer_of(rank: int, layout: RankLayout, meeting: Path) -> Generator[HostPeer]:
    peers = RankPeers(rank, layout, meeting, torch.device("cpu"))
    try:
        yield HostPeer(peers)
    finally:
        peers.close()


if __name__ == "__main__":
    interpreter.install()
    with lean():
        sys.exit(main(sys.argv[1:], lambda task: peer_of(task.rank, task.hosts.ranks, task.share.meeting)))
