"""A group of ranks in one process: threads that take turns, each with a device of CPU tensors."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Queue
from typing import TypeVar

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Transfer
from firelane.backends.cuda.device.launch import Work
from firelane.parallel.ranks import RankLayout
from tests.backends.cuda.host_device import HostDevice, poison

T = TypeVar("T")
WAIT_S = 120.0


class HostGroup:
    """Threads of which one runs at a time, for the interpreter is one for all: until it ends or meets the
    others."""

    def __init__(self, layout: RankLayout) -> None:
        self.layout = layout
        self._turn = threading.Lock()
        self._met = [threading.Barrier(layout.lanes) for _ in range(layout.pp)]
        self._memory: dict[int, Tensor] = {}
        self._sent = defaultdict[tuple[int, int], "Queue[Tensor]"](Queue)

    def run(self, work: Callable[[int, HostRank], T]) -> list[T]:
        """work(rank, its device) of all ranks."""

        def one(rank: int) -> T:
            try:
                with self._turn:
                    return work(rank, HostRank(self, rank))
            except BaseException:
                for met in self._met:
                    met.abort()
                raise

        with ThreadPoolExecutor(self.layout.ranks) as pool:
            runs = [pool.submit(one, rank) for rank in range(self.layout.ranks)]
        failed = [e for e in (run.exception() for run in runs) if e]
        for error in sorted(failed, key=lambda e: isinstance(e, threading.BrokenBarrierError)):
            raise error
        return [run.result() for run in runs]

    @contextmanager
    def _waiting(self) -> Generator[None]:
        """It is another thread's turn meanwhile."""
        self._turn.release()
        try:
            yield
        finally:
            self._turn.acquire()

    def meet(self, rank: int) -> None:
        """All ranks of the stage."""
        with self._waiting():
            self._met[self.layout.stage_of(rank)].wait(WAIT_S)

    def share(self, rank: int, nbytes: int) -> HostShared:
        self._memory[rank] = poison(torch.empty(nbytes, dtype=torch.uint8))
        self.meet(rank)
        first = rank - self.layout.lane_of(rank)
        return HostShared(self, rank, [self._memory[first + lane] for lane in range(self.layout.lanes)])

    def send(self, rank: int, number: int, rows: Tensor) -> None:
        """To the rank of the next stage."""
        self._sent[rank + self.layout.lanes, number].put(rows.clone())

    def receive(self, rank: int, number: int) -> Tensor:
        with self._waiting():
            return self._sent[rank, number].get(timeout=WAIT_S)


@dataclass(frozen=True)
class HostShared:
    """Memory of all ranks, as one of them sees it."""

    group: HostGroup
    rank: int
    all: list[Tensor]

    @property
    def mine(self) -> Tensor:
        return self.all[self.group.layout.lane_of(self.rank)]

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        return Meeting(self.group, self.rank), tuple(memory[first : first + nbytes] for memory in self.all)


@dataclass(frozen=True)
class Meeting:
    """Work that waits for all ranks."""

    group: HostGroup
    rank: int
    name: str = "meeting"

    def run(self) -> None:
        self.group.meet(self.rank)

    def compile(self) -> None:
        pass


@dataclass(frozen=True)
class HostLink:
    """Rows in queues from stage to stage. memory: of what arrives, and of what leaves."""

    group: HostGroup
    rank: int
    incoming: Tensor
    outgoing: Tensor

    def send(self, number: int, first: int, nbytes: int) -> Transfer:
        memory = self.outgoing[first : first + nbytes]
        sent = HostWork(lambda: self.group.send(self.rank, number, memory))
        return Transfer(before=HostWork(lambda: poison(memory)), memory=memory, after=sent)

    def receive(self, number: int, first: int, nbytes: int) -> Transfer:
        memory = self.incoming[first : first + nbytes]
        received = HostWork(lambda: memory.copy_(self.group.receive(self.rank, number)))
        return Transfer(before=received, memory=memory, after=HostWork(lambda: poison(memory)))


@dataclass(frozen=True)
class HostWork:
    """Work that is a function."""

    run: Callable[[], object]
    name: str = "host work"

    def compile(self) -> None:
        pass


class HostRank(HostDevice):
    """Device of one rank of a group."""

    def __init__(self, group: HostGroup, rank: int) -> None:
        super().__init__(warm=False, memory_bytes=2 << 30)
        self._group, self._rank = group, rank

    def shared(self, nbytes: int, *, ranks: int) -> HostShared:
        assert ranks == self._group.layout.lanes
        return self._group.share(self._rank, nbytes)

    def stage_link(self, nbytes: int, *, received: int) -> HostLink:
        del received
        incoming, outgoing = (poison(torch.empty(nbytes, dtype=torch.uint8)) for _ in range(2))
        return HostLink(self._group, self._rank, incoming, outgoing)
