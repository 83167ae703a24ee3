"""A model by several processes, of this machine and of others: the executor in front, which is itself the
rank that draws tokens."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path

from firelane import env
from firelane.backends.cpu.attach import LinkBrokenError
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.group import check_group, check_integer_rows, hello_of
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import LinkSizes, RankLink
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.member import GroupSizes, limits_of
from firelane.backends.cpu.rank_pages import RankPages, pages_of, states_of
from firelane.backends.cpu.rank_processes import LocalRanks, usable_cores
from firelane.backends.cpu.remote_hosts import NoRemoteHosts, RemoteHosts, TcpHosts
from firelane.contract import (
    NOTHING,
    GivenBack,
    PageMemory,
    ProgressCallback,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.engine_config import ExecutorConfig
from firelane.errors import MachineError
from firelane.parallel.ranks import rank_programs
from firelane.program.program import Program

log = logging.getLogger(__name__)
END_S = 5.0
"""Until it is known which rank has ended."""


def load_group(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> RankGroup:
    """The executor in front of the ranks that `config` asks for, which divide this process's cores.

    Raises what loader.load_for() does, UsageError for more ranks than cores or sizes that no cut exists for,
    MachineError for a rank that does not appear or ends.
    """
    settings = env.read()
    leader = Leader(program, model_dir, config, sorted(usable_cores()), settings)
    try:
        executor = load_for(settings, program, model_dir, leader.local.own_config, progress, leader)
        try:
            return RankGroup(executor, leader)
        except BaseException:
            executor.release()
            raise
    except BaseException:
        leader.close()
        raise


@dataclass
class Leader:
    """The rank that draws, of this process, as the loader sees it: once sizes are known, it has the others
    started, here and on other hosts."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    cores: Sequence[int]
    settings: env.Environment
    limits: StepLimits | None = field(default=None, init=False)
    link: RankLink | None = field(default=None, init=False)
    page_memory: RankPages | None = field(default=None, init=False)
    state_memory: RankPages | None = field(default=None, init=False)
    _programs: list[Program] = field(default_factory=list[Program], init=False)

    def __post_init__(self) -> None:
        self.hosts = check_group(self.whole, self.config)
        self.local = LocalRanks(
            whole=self.whole,
            model_dir=self.model_dir,
            config=self.config,
            hosts=self.hosts,
            host=0,
            rank=self.hosts.ranks.sampler,
            cores=self.cores,
            log_level=self.settings.log_level,
        )
        hosts = self.config.hosts
        self.remote: RemoteHosts = TcpHosts(self.hosts, hosts, self.settings) if hosts else NoRemoteHosts()

    @property
    def ranks(self) -> int:
        return self.hosts.each

    @property
    def max_in_flight(self) -> int:
        return self.hosts.ranks.pp

    @property
    def available_bytes(self) -> int:
        return self.remote.available_bytes

    def program(self, program: Program) -> Program:
        """Raises UsageError also where block tables would not mean the same on all ranks, MachineError for a
        host that does not attach."""
        layout = self.hosts.ranks
        self._programs = rank_programs(program, layout, self.config.ranks_option)
        if self.config.activation_dtype == "int8":
            check_integer_rows(program, layout, self._programs)
        if self.config.hosts:
            self.remote.attach(hello_of(self.model_dir, program, self.config, self.settings))
        return self._programs[layout.sampler]

    def sizes(self, program: Program) -> GroupSizes:
        del program
        return GroupSizes.of(self._programs, hosts=self.hosts.count)

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        self.limits = limits
        layouts = [
            replace(layout, program=own, limits=limits_of(own, limits), forms={}) for own in self._programs
        ]
        reaches = self.config.reaches_pages and self.config.hosts is None
        sizes = LinkSizes.of(layouts, reaches=reaches)
        wires = self.remote.start(limits, sizes)
        self.link, state = self.local.start(layout, limits, sizes, wires)
        if reaches:
            self.page_memory, self.state_memory = (
                pages_of(self.link, layouts),
                states_of(self.link, layouts),
            )
        return self.link, state

    def pinned(self) -> AbstractContextManager[None]:
        return self.local.pinned()

    def close(self) -> None:
        self.remote.close()
        self.local.close()


class RankGroup:
    """See contract.Executor: steps of all ranks. Ends with MachineError once a rank is gone."""

    def __init__(self, executor: CpuExecutor, leader: Leader) -> None:
        """Takes over both, unless it raises MachineError: then the caller keeps them."""
        assert leader.link is not None
        assert leader.limits is not None
        self.limits = leader.limits
        self.max_in_flight = leader.max_in_flight
        self.is_pipelined = leader.max_in_flight > 1
        self._executor, self._leader, self._link = executor, leader, leader.link
        self._sleeps, self._others = False, NOTHING
        self._ended, self._is_known = "a link between ranks broke", threading.Event()
        leader.local.await_ready(self._end)
        leader.remote.await_ready(self._end)

    @property
    def state(self) -> SlotState:
        return self._executor.state

    @property
    def vocab_size(self) -> int:
        return self._executor.vocab_size

    @property
    def hidden_width(self) -> int:
        return self._executor.hidden_width

    @property
    def can_generate(self) -> bool:
        return self._executor.can_generate

    @property
    def arithmetic(self) -> str:
        return self._executor.arithmetic

    @property
    def weights_bytes(self) -> int:
        """Of all ranks."""
        others = self._leader.local.weights_bytes + self._leader.remote.weights_bytes
        return self._executor.weights_bytes + others

    @property
    def kv_bytes(self) -> int:
        others = self._leader.local.kv_bytes + self._leader.remote.kv_bytes
        return self._executor.kv_bytes + others

    @property
    def page_memory(self) -> PageMemory | None:
        """None of ranks whose pages this process was not asked to reach, and of those on several hosts."""
        return self._leader.page_memory

    @property
    def state_memory(self) -> PageMemory | None:
        return self._leader.state_memory

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks of this host, this one first."""
        return [os.getpid(), *(member.process.pid for member in self._leader.local.processes)]

    def busy_seconds(self) -> list[float]:
        """By rank of this host: time spent in steps so far, without waits for the stage before."""
        return self._link.busy_seconds()

    def submit(self, inputs: StepInputs) -> None:
        self._check()
        try:
            self._leader.remote.hand_out(inputs, self.state)
        except LinkBrokenError:
            self._executor.end_group()
            self._check()
        self._link.hand_out(inputs)
        self._executor.hand_out()
        self._executor.submit(inputs)

    def wait(self) -> StepOutputs:
        outputs = self._executor.wait()
        self._check()
        return outputs

    def settle(self) -> None:
        self._executor.settle()

    @property
    def can_sleep(self) -> bool:
        """On one host: others are not told."""
        return self._leader.config.hosts is None

    def standby(self) -> GivenBack:
        if not self._sleeps:
            self._check()
            self._others, self._sleeps = self._leader.local.rest(self._link.steps), True
            self._executor.standby()
            self._link.give_back()
        return self._others

    def wake(self) -> None:
        if self._sleeps:
            self._leader.local.wake()
            self._executor.wake()
            self._sleeps = False

    def release(self) -> None:
        """Ends the ranks; idempotent."""
        self._executor.end_group()
        self._leader.close()
        self._executor.release()

    def _check(self) -> None:
        if self._link.has_ended:
            self._is_known.wait(END_S)
            raise MachineError(self._ended)

    def _end(self, why: str) -> None:
        """From a thread that watches a rank: nobody waits for it any longer. The first reason counts."""
        if self._is_known.is_set():
            return
        self._ended = why
        self._is_known.set()
        log.error("rank_ended error=%r", why)
        self._executor.end_group()
