"""Processes of the ranks of one host: those that the first of them starts beside itself, and what they
share."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue

import msgspec

from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import NO_WIRES, LinkSizes, RankLink, RankWires
from firelane.backends.cpu.rank_task import ORDER, RESTED, SIZES, WAKE, Task
from firelane.backends.rank_process import RankProcess
from firelane.contract import GivenBack, SlotState, StepLimits
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.hosts import HostLayout
from firelane.program.program import Program

MODULE = "firelane.backends.cpu.rank_process"


def usable_cores() -> set[int]:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class MemberProcess:
    """Another rank of this host, in a process that is started for `task`."""

    def __init__(self, task: Task) -> None:
        fds = (task.link_fd, task.slots_fd, *task.wires.fds)
        self.process = RankProcess(MODULE, task.rank, task, fds)
        self.weights_bytes = self.kv_bytes = 0
        self._rested: SimpleQueue[GivenBack | None] = SimpleQueue()

    def await_ready(self) -> None:
        """Raises MachineError where it has ended, or does not appear."""
        self.process.await_loaded()
        self.process.await_ready()
        self.weights_bytes, self.kv_bytes = SIZES.unpack(self.process.receive(SIZES.size))

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call on_end, from another thread, if it ends before it is told to."""
        self.process.watch(on_end, self._heard, RESTED.size)

    def rest(self, after: int) -> None:
        """Have it go to standby after so many steps."""
        self.process.say(ORDER.pack(after))

    def wake(self) -> None:
        self.process.say(ORDER.pack(WAKE))

    def rested(self) -> GivenBack:
        """Wait until it is in standby. Raises MachineError where it is gone."""
        found = self._rested.get()
        if found is None:
            raise MachineError(f"{self.process.name} {self.process.ending()} on its way to standby")
        return found

    def _heard(self, said: bytes) -> None:
        self._rested.put(GivenBack(*RESTED.unpack(said)) if said else None)


@dataclass
class LocalRanks:
    """The ranks of host `host`, of which this process is `rank`: it starts the others. config: of the whole
    group; log_level: of all processes."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    hosts: HostLayout
    host: int
    rank: int
    cores: Sequence[int]
    log_level: str
    processes: list[MemberProcess] = field(default_factory=list[MemberProcess], init=False)

    def __post_init__(self) -> None:
        """Raises UsageError for more ranks than cores."""
        each, cores = self.hosts.each, len(self.cores)
        if each > cores:
            raise UsageError(
                f"{self.config.ranks_option}: this process has {cores} core{'s' * (cores != 1)}, and each "
                "rank needs one; lower it"
            )

    @property
    def own_config(self) -> ExecutorConfig:
        """The share of one rank."""
        config = self.config
        kv = config.kv_cache_bytes
        return msgspec.structs.replace(
            config,
            threads=max(1, (config.threads or len(self.cores)) // self.hosts.each),
            kv_cache_bytes=kv and max(1, kv // self.hosts.ranks.ranks),
            kv_cache_memory="private",
        )

    def start(
        self, layout: Layout, limits: StepLimits, sizes: LinkSizes, wires: Mapping[int, RankWires]
    ) -> tuple[RankLink, SlotState]:
        """All that the ranks share, once the others are started. wires: by rank."""
        own = wires.get(self.rank, NO_WIRES)
        link = RankLink(layout, self.hosts, self.rank, sizes, cores=len(self.cores), wires=own)
        slots = shared_memory()
        try:
            state = SlotState.allocate(limits, layout.program.vocab_size, fd=slots)
            for rank in self.hosts.ranks_of(self.host):
                if rank != self.rank:
                    task = self._task(rank, limits, link, slots, wires.get(rank, NO_WIRES))
                    self.processes.append(MemberProcess(task))
                    self.processes[-1].process.send()
        finally:
            os.close(slots)
            link.close_fd()
        return link, state

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        """on_end: called from another thread when one of them ends, from now on. Raises MachineError."""
        for process in self.processes:
            process.await_ready()
        for process in self.processes:
            process.watch(on_end)

    @property
    def weights_bytes(self) -> int:
        """Of the other processes, like the next one."""
        return sum(process.weights_bytes for process in self.processes)

    @property
    def kv_bytes(self) -> int:
        return sum(process.kv_bytes for process in self.processes)

    def rest(self, after: int) -> GivenBack:
        """Have the other processes go to standby after so many steps. Raises MachineError."""
        for process in self.processes:
            process.rest(after)
        found = [process.rested() for process in self.processes]
        return GivenBack(sum(one.released_bytes for one in found), sum(one.resident_bytes for one in found))

    def wake(self) -> None:
        for process in self.processes:
            process.wake()

    @contextmanager
    def pinned(self) -> Generator[None]:
        """Threads that are made meanwhile stay on the cores of this rank."""
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores(self.rank))
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def close(self) -> None:
        for member in self.processes:
            member.process.close()

    def _task(self, rank: int, limits: StepLimits, link: RankLink, slots_fd: int, wires: RankWires) -> Task:
        return Task(
            program=self.whole,
            model_dir=self.model_dir,
            config=self.own_config,
            rank=rank,
            hosts=self.hosts,
            limits=limits,
            link_sizes=link.sizes,
            link_fd=link.fd,
            slots_fd=slots_fd,
            wires=wires,
            cores=self._cores(rank),
            group_cores=len(self.cores),
            log_level=self.log_level,
            log_format=self.config.log_format if isinstance(self.config, EngineConfig) else "text",
        )

    def _cores(self, rank: int) -> tuple[int, ...]:
        each = len(self.cores) // self.hosts.each
        place = rank % self.hosts.each
        return tuple(self.cores[place * each : (place + 1) * each])
