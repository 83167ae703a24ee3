"""A host of a group of ranks that has no engine: its first rank, which is this process, starts the others of
the host, and hands on to them the steps that the engine's host sends."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

from firelane import env
from firelane.backends.cpu.attach import (
    Ended,
    HostSocket,
    LinkBrokenError,
    Listener,
    Loaded,
    Refused,
    Start,
    Welcome,
    cluster_key,
    connect,
)
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.group import check_group, hello_of
from firelane.backends.cpu.host_wires import HostWires
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import LinkSizes, RankLink
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.member import GroupSizes
from firelane.backends.cpu.rank_processes import LocalRanks, usable_cores
from firelane.backends.cpu.step_stream import HEADER_INTS, body_bytes, decode
from firelane.contract import ProgressCallback, SlotState, StepInputs, StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.errors import FirelaneError, UsageError
from firelane.native.host_memory import available_bytes
from firelane.parallel.ranks import rank_program
from firelane.program.program import Program

ANSWER: Any = Welcome | Refused
log = logging.getLogger(__name__)


class GroupEndedError(FirelaneError):
    """The group is no more, or its first host is not there: to attach again may help."""

    exit_code = 75


def follow_group(
    program: Program,
    model_dir: Path,
    config: ExecutorConfig,
    progress: ProgressCallback,
    on_loaded: Callable[[CpuExecutor], None],
) -> None:
    """Run the ranks of this host until the group ends. on_loaded: called once, before the first step.

    Raises GroupEndedError, and what loader.load_for() does.
    """
    settings = env.read()
    host = RankHost(program, model_dir, config, sorted(usable_cores()), settings)
    try:
        executor = load_for(settings, program, model_dir, host.local.own_config, progress, host)
        try:
            on_loaded(executor)
            host.run(executor)
        finally:
            executor.release()
    except LinkBrokenError as error:
        raise GroupEndedError(f"host 0 is gone: {error}") from error
    except GroupEndedError:
        raise
    except (FirelaneError, MemoryError) as error:
        host.leave(f"{error}" or "out of memory")
        raise
    finally:
        host.close()


class RankHost:
    """Member of the group (member.Member): the first rank of this host."""

    max_in_flight = 1

    def __init__(
        self,
        whole: Program,
        model_dir: Path,
        config: ExecutorConfig,
        cores: Sequence[int],
        settings: env.Environment,
    ) -> None:
        """Raises UsageError."""
        assert config.hosts is not None
        self._model_dir, self._config, self._settings, self._place = model_dir, config, settings, config.hosts
        self._layout = check_group(whole, config)
        if not 0 < self._place.own < self._layout.count:
            raise UsageError(
                f"--node-rank {self._place.own}: with --nnodes {self._layout.count} that of another host "
                f"than the first is 1 to {self._layout.count - 1}"
            )
        self.rank = self._layout.ranks_of(self._place.own)[0]
        self.local = LocalRanks(
            whole=whole,
            model_dir=model_dir,
            config=config,
            hosts=self._layout,
            host=self._place.own,
            rank=self.rank,
            cores=cores,
            log_level=settings.log_level,
        )
        self._key = cluster_key(self._place, settings)
        self._leader = self._connected()
        self._listener = self._listen()
        self._wires: HostWires | None = None
        self._group = ""
        self._link: RankLink | None = None
        self._state: SlotState | None = None
        self._start: Start | None = None
        self._limits: StepLimits | None = None
        self._ended = ""

    def _connected(self) -> HostSocket:
        place = self._place
        try:
            return connect(place.address, place.port, self._key, self._deadline_s)
        except LinkBrokenError as error:
            raise UsageError(
                f"--master-addr {place.address}:{place.port}: no host 0 there for {place.timeout_s:g} s "
                f"({error})"
            ) from error

    def _check(self) -> None:
        """Before the first step host 0 has nothing to say, unless it is gone."""
        if self._leader.has_news:
            raise LinkBrokenError(f"{self._leader.address} has closed the connection")

    @property
    def _deadline_s(self) -> float:
        return time.monotonic() + self._place.timeout_s

    @property
    def ranks(self) -> int:
        return self._layout.each

    @property
    def available_bytes(self) -> int:
        return available_bytes()

    def program(self, program: Program) -> Program:
        """Attaches, and waits for the other hosts. Raises UsageError where the first refuses this one."""
        port = self._listener.port if self._listener else 0
        self._leader.send(hello_of(self._model_dir, program, self._config, self._settings, port))
        answer = self._leader.receive(ANSWER)
        if isinstance(answer, Refused):
            raise UsageError(f"host 0 refuses this one: {answer.why}")
        log.info("rank_host_waits group of %d hosts", self._layout.count)
        own = rank_program(program, self._layout.ranks, self.rank)
        self._start, self._group = self._leader.receive(Start), answer.group
        self._limits = StepLimits(
            **self._start.limits, spans=own.spans, kv_cache_code=self._config.kv_cache_code
        )
        return own

    def sizes(self, program: Program) -> GroupSizes:
        return GroupSizes.of([program])

    @property
    def limits(self) -> StepLimits | None:
        return self._limits

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        assert self._start is not None
        addresses = [(self._place.address, self._place.port), *self._start.addresses[1:]]
        self._wires = HostWires(self._layout, self._place.own, self._group)
        self._wires.open(addresses, self._listener, self._key, self._deadline_s, self._check)
        sizes = LinkSizes(**self._start.link_sizes)
        self._link, self._state = self.local.start(layout, limits, sizes, self._wires.of_ranks())
        return self._link, self._state

    def pinned(self) -> AbstractContextManager[None]:
        return self.local.pinned()

    def run(self, executor: CpuExecutor) -> None:
        """Until the group ends. Raises GroupEndedError."""

        def end(why: str) -> None:
            self._ended = self._ended or why
            self.leave(why)
            executor.end_group()

        self.local.await_ready(end)
        weights_bytes = executor.weights_bytes + self.local.weights_bytes
        self._leader.send(Loaded(weights_bytes, executor.kv_bytes + self.local.kv_bytes))
        steps = threading.Thread(target=self._hand_on, args=(executor,), name="steps", daemon=True)
        steps.start()
        executor.follow()
        executor.end_group()
        self._leader.close()
        steps.join()
        raise GroupEndedError(self._ended or "a link to another host broke")

    def leave(self, why: str) -> None:
        """Tell the first host, if it is there."""
        with suppress(LinkBrokenError):
            self._leader.send(Ended(why))

    def close(self) -> None:
        """Idempotent."""
        self._leader.close()
        if self._listener is not None:
            self._listener.close()
        self.local.close()
        if self._wires is not None:
            self._wires.close()

    def _listen(self) -> Listener | None:
        """For hosts of higher numbers that have ranks which this host's exchange rows with."""
        own = self._place.own
        others = {host for wire in self._layout.wires() for host in map(self._layout.host_of, wire.ranks)}
        here = self._leader.sock.getsockname()[0]
        return Listener(here, 0, self._key) if max(others, default=0) > own else None

    def _hand_on(self, executor: CpuExecutor) -> None:
        """Steps of the engine, until its host is gone."""
        assert self._link is not None
        assert self._state is not None
        assert self._limits is not None
        inputs = StepInputs.allocate(self._limits)
        try:
            while True:
                header = self._leader.receive_bytes(4 * HEADER_INTS)
                decode(header, self._leader.receive_bytes(body_bytes(header)), inputs, self._state)
                self._link.hand_out(inputs)
                executor.hand_out()
        except LinkBrokenError as error:
            self._ended = self._ended or f"host 0 is gone: {error}"
            executor.end_group()
