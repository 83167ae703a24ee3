"""The rank that leads: it starts the processes of the others, gives each of them its task, and ends them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from firelane import env
from firelane.backends.ranks.member import Member
from firelane.backends.ranks.process import RankProcess
from firelane.backends.ranks.words import WAKE, Task
from firelane.contract import GivenBack, PageMemory, SlotState, StepInputs, StepLimits
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.parallel.ranks import rank_programs
from firelane.program.program import Program


class Interconnect:
    """The part of a group of ranks that depends on the kind of device: how ranks learn of steps, and by what
    they exchange rows. This class has all ranks on one host, beside each other, and reaches no pages."""

    can_sleep = False
    weights_bytes = kv_bytes = 0
    """Bytes of the ranks of other hosts."""
    page_memory: PageMemory | None = None
    state_memory: PageMemory | None = None
    lost_errors: tuple[type[Exception], ...] = ()
    """Errors of a step that a lost rank may have caused."""

    def pinned(self) -> AbstractContextManager[None]:
        """Threads that are made meanwhile stay where this rank computes."""
        return nullcontext()

    def open(self, limits: StepLimits) -> None:
        """Make what the ranks of this host share, before the first is started. limits: of the group."""

    def share(self, rank: int) -> object:
        """The part that the process of `rank` gets in its Task."""
        raise NotImplementedError

    def fds(self, rank: int) -> Sequence[int]:
        """Descriptors that the process of `rank` inherits."""
        raise NotImplementedError

    def close_fds(self) -> None:
        """All processes have inherited theirs."""
        raise NotImplementedError

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        """Wait for the ranks of other hosts. on_end: called from another thread, with the reason, when such a
        host leaves later. Raises MachineError."""

    def hand_out(self, inputs: StepInputs, state: SlotState, processes: Sequence[RankProcess]) -> None:
        """Have the other ranks run a step; `processes` are those of this host."""
        raise NotImplementedError

    @property
    def has_ended(self) -> bool:
        """Whether some rank is gone: what the others compute since is nothing."""
        raise NotImplementedError

    def end(self, why: str) -> None:
        """Have no rank wait any longer. Safe from any thread; idempotent."""
        raise NotImplementedError

    def give_back(self) -> None:
        """Give back the memory by which rows are exchanged; no step is in flight."""

    def busy_seconds(self) -> list[float]:
        """Seconds that each rank of this host has computed so far; [] where nobody counts them."""
        return []

    def close(self) -> None:
        """End what joins the ranks. Idempotent."""


@dataclass(kw_only=True)
class Leader(Member):
    """The first rank of a host, which starts the others of that host. On host 0 it draws tokens, and finds
    the sizes of the group."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    """The share of one rank."""
    interconnect: Interconnect
    module: str
    """The module that another rank's process runs."""
    host: int = 0
    processes: list[RankProcess] = field(default_factory=list[RankProcess], init=False)

    def __post_init__(self) -> None:
        self.rank = self.hosts.first_rank(self.host)

    @property
    def max_in_flight(self) -> int:
        return 1 if self.host else self.hosts.ranks.pp

    def programs(self, whole: Program) -> Mapping[int, Program]:
        """Raises UsageError also where block tables would not mean the same on all ranks."""
        if self.host:
            return super().programs(whole)
        return dict(enumerate(rank_programs(whole, self.hosts.ranks, self.config.ranks_option)))

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState:
        """Starts the processes. Raises MachineError where one does not take its task."""
        self.limits, slots = limits, shared_memory()
        self.interconnect.open(limits)
        try:
            state = SlotState.allocate(limits, vocab_size, fd=slots)
            for rank in self.hosts.ranks_of(self.host):
                if rank != self.rank:
                    fds = (slots, *self.interconnect.fds(rank))
                    self.processes.append(RankProcess(self.module, self._task(rank, limits, slots), fds))
                    self.processes[-1].send_task()
        finally:
            os.close(slots)
            self.interconnect.close_fds()
        return state

    def meet_loaded(self) -> None:
        for process in self.processes:
            process.await_loaded()

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        """Wait until all ranks are ready. on_end: called from another thread, with the reason, when one of
        them ends later. Raises MachineError."""
        for process in self.processes:
            process.await_ready()
        for process in self.processes:
            process.watch(on_end)
        self.interconnect.await_ready(on_end)

    @property
    def weights_bytes(self) -> int:
        """Bytes of the other ranks' weights."""
        return self.interconnect.weights_bytes + sum(process.weights_bytes for process in self.processes)

    @property
    def kv_bytes(self) -> int:
        """Bytes of the other ranks' KV caches."""
        return self.interconnect.kv_bytes + sum(process.kv_bytes for process in self.processes)

    def hand_out(self, inputs: StepInputs, state: SlotState) -> None:
        """Have the other ranks run a step."""
        self.interconnect.hand_out(inputs, state, self.processes)

    def rest(self, after: int) -> GivenBack:
        """Have the other processes go to standby after so many steps. Raises MachineError."""
        for process in self.processes:
            process.order(after)
        found = [process.rested() for process in self.processes]
        return GivenBack(sum(one.released_bytes for one in found), sum(one.resident_bytes for one in found))

    def wake(self) -> None:
        for process in self.processes:
            process.order(WAKE)

    def close(self) -> None:
        """End the other processes. Idempotent."""
        self.interconnect.close()
        for process in self.processes:
            process.close()

    def _task(self, rank: int, limits: StepLimits, slots_fd: int) -> Task:
        return Task(
            program=self.whole,
            model_dir=self.model_dir,
            config=self.config,
            rank=rank,
            hosts=self.hosts,
            limits=limits,
            slots_fd=slots_fd,
            share=self.interconnect.share(rank),
            log_level=env.read().log_level,
            log_format=self.config.log_format if isinstance(self.config, EngineConfig) else "text",
        )
