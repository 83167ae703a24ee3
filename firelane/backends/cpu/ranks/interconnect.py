"""The first rank of a host and the others: the memory that they share, the cores that they divide, and the
other hosts of the group."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from firelane.backends.cpu.codegen.layout import Layout
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.interconnect import CpuInterconnect, CpuShare, Programs
from firelane.backends.cpu.link import NO_WIRES, LinkSizes, RankLink, RankWires
from firelane.backends.cpu.ranks.agreement import check_integer_rows, facts_of_host
from firelane.backends.cpu.ranks.hosts.others import OtherHosts
from firelane.backends.cpu.ranks.pages import pages_of, states_of
from firelane.backends.ranks.leader import Leader
from firelane.backends.ranks.member import limits_of
from firelane.backends.ranks.process import RankProcess
from firelane.contract import SlotState, StepInputs, StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.hosts import HostLayout
from firelane.program.program import Program

MODULE = "firelane.backends.cpu.ranks.worker"


def usable_cores() -> set[int]:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class MemoryInterconnect(CpuInterconnect):
    """The ranks of one host meet in shared memory (RankLink); `others` brings it to other hosts."""

    lost_errors = (MachineError,)

    def __init__(
        self,
        model_dir: Path,
        config: ExecutorConfig,
        hosts: HostLayout,
        others: OtherHosts,
        cores: Sequence[int],
    ) -> None:
        """config: of the whole group. Raises UsageError for more ranks than cores."""
        self._model_dir, self._config, self._hosts = model_dir, config, hosts
        self._others, self._cores = others, cores
        self.executor: CpuExecutor | None = None
        """That of this rank, from when it is loaded."""
        self._link: RankLink | None = None
        self._wires: Mapping[int, RankWires] = {}
        self.can_sleep = config.hosts is None  # others are not told
        if hosts.each > len(cores):
            raise UsageError(
                f"{config.ranks_option}: this process has {len(cores)} core{'s' * (len(cores) != 1)}, and "
                "each rank needs one; lower it"
            )
        self._host = config.hosts.own if config.hosts else 0
        self._rank = hosts.first_rank(self._host)

    def attach(self, whole: Program, programs: Programs) -> StepLimits | None:
        config = self._config
        if config.activation_dtype == "int8" and not self._host:
            check_integer_rows(whole, self._hosts.ranks, list(programs.values()))
        if config.hosts is None:
            return None
        found = self._others.attach(facts_of_host(self._model_dir, whole, config))
        spans = programs[self._rank].spans
        return StepLimits(**found, spans=spans, kv_cache_code=config.kv_cache_code) if found else None

    @property
    def available_bytes(self) -> int:
        return self._others.available_bytes

    def connect(self, layout: Layout, limits: StepLimits, programs: Programs) -> RankLink:
        layouts = [
            replace(layout, program=own, limits=limits_of(own, limits), forms={}) for own in programs.values()
        ]
        reaches = self._config.reaches_pages and self._config.hosts is None
        sizes, self._wires = self._others.start(limits, LinkSizes.of(layouts, reaches=reaches))
        own = self._wires.get(self._rank, NO_WIRES)
        link = RankLink(layout, self._hosts, self._rank, sizes, cores=len(self._cores), wires=own)
        if reaches:
            self.page_memory, self.state_memory = pages_of(link, layouts), states_of(link, layouts)
        self._link = link
        return link

    @contextmanager
    def pinned(self) -> Generator[None]:
        if not hasattr(os, "sched_setaffinity"):
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self._cores_of(self._rank))
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    @property
    def link(self) -> RankLink:
        assert self._link is not None, "connect() comes first"
        return self._link

    def share(self, rank: int) -> CpuShare:
        return CpuShare(
            link_fd=self.link.fd,
            link_sizes=self.link.sizes,
            wires=self._wires.get(rank, NO_WIRES),
            cores=self._cores_of(rank),
            group_cores=len(self._cores),
        )

    def fds(self, rank: int) -> Sequence[int]:
        return self.link.fd, *self._wires.get(rank, NO_WIRES).fds

    def close_fds(self) -> None:
        self.link.close_fd()

    def await_ready(self, on_end: Callable[[str], None]) -> None:
        self._others.await_ready(on_end)
        self.weights_bytes, self.kv_bytes = self._others.weights_bytes, self._others.kv_bytes

    def hand_out(self, inputs: StepInputs, state: SlotState, processes: Sequence[RankProcess]) -> None:
        del processes  # their kernels wait for the word in the shared memory
        assert self.executor is not None
        try:
            self._others.hand_out(inputs, state)
        except MachineError:
            self.end("")
            raise
        self.link.ring.write(inputs)
        self.executor.hand_out()

    @property
    def has_ended(self) -> bool:
        return self.link.has_ended

    def end(self, why: str) -> None:
        del why
        if self.executor is not None:
            self.executor.end_group()

    def give_back(self) -> None:
        self.link.give_back()

    def busy_seconds(self) -> list[float]:
        return self.link.busy_seconds()

    def close(self) -> None:
        self.end("")
        self._others.close()

    def _cores_of(self, rank: int) -> tuple[int, ...]:
        each = len(self._cores) // self._hosts.each
        place = rank % self._hosts.each
        return tuple(self._cores[place * each : (place + 1) * each])


def leader_of(
    program: Program, model_dir: Path, config: ExecutorConfig, hosts: HostLayout, others: OtherHosts
) -> tuple[Leader, MemoryInterconnect]:
    """The first rank of the host that this process is on. Raises UsageError for more ranks than cores."""
    cores = sorted(usable_cores())
    interconnect = MemoryInterconnect(model_dir, config, hosts, others, cores)
    kv = config.kv_cache_bytes
    own = msgspec.structs.replace(
        config,
        beside=config.beside and config.beside.shared_by(hosts.each),
        threads=max(1, (config.threads or len(cores)) // hosts.each),
        kv_cache_bytes=kv and max(1, kv // hosts.ranks.ranks),
        kv_cache_memory="private",
    )
    leader = Leader(
        hosts=hosts,
        host=config.hosts.own if config.hosts else 0,
        whole=program,
        model_dir=model_dir,
        config=own,
        interconnect=interconnect,
        module=MODULE,
    )
    return leader, interconnect
