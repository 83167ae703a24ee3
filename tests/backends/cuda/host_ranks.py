"""A group of ranks in one process: threads that take turns, each with a device of CPU tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from firelane.backends.cuda.launch import Work
from tests.backends.cuda.host_device import HostDevice, poison

T = TypeVar("T")
WAIT_S = 120.0


class HostGroup:
    """Threads of which one runs at a time, for the interpreter is one for all: until it ends or meets the
    others."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self._turn = threading.Lock()
        self._met = threading.Barrier(ranks)
        self._memory: dict[int, Tensor] = {}

    def run(self, work: Callable[[int, HostRank], T]) -> list[T]:
        """work(rank, its device) of all ranks."""

        def one(rank: int) -> T:
            try:
                with self._turn:
                    return work(rank, HostRank(self, rank))
            except BaseException:
                self._met.abort()
                raise

        with ThreadPoolExecutor(self.ranks) as pool:
            runs = [pool.submit(one, rank) for rank in range(self.ranks)]
        failed = [e for e in (run.exception() for run in runs) if e]
        for error in sorted(failed, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [run.result() for run in runs]

    def meet(self) -> None:
        self._turn.release()
        try:
            self._met.wait(WAIT_S)
        finally:
            self._turn.acquire()

    def share(self, rank: int, nbytes: int) -> HostShared:
        self._memory[rank] = poison(torch.empty(nbytes, dtype=torch.uint8))
        self.meet()
        return HostShared(self, rank, [self._memory[i] for i in range(self.ranks)])


@dataclass(frozen=True)
class HostShared:
    """Memory of all ranks, as one of them sees it."""

    group: HostGroup
    rank: int
    all: list[Tensor]

    @property
    def mine(self) -> Tensor:
        return self.all[self.rank]

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        return Meeting(self.group), tuple(memory[first : first + nbytes] for memory in self.all)


@dataclass(frozen=True)
class Meeting:
    """Work that waits for all ranks."""

    group: HostGroup
    name: str = "meeting"

    def run(self) -> None:
        self.group.meet()

    def compile(self) -> None:
        pass


class HostRank(HostDevice):
    """Device of one rank of a group."""

    def __init__(self, group: HostGroup, rank: int) -> None:
        super().__init__(warm=False, memory_bytes=2 << 30)
        self._group, self._rank = group, rank

    def shared(self, nbytes: int, *, ranks: int) -> HostShared:
        assert ranks == self._group.ranks
        return self._group.share(self._rank, nbytes)
