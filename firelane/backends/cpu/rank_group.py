"""A model by several processes of this machine: the executor in front, which is itself the rank that draws
tokens, and the processes of the others."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import LinkSizes, RankLink
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.member import GroupSizes, limits_of
from firelane.backends.cpu.native import MOST_IN_FLIGHT
from firelane.backends.cpu.rank_task import FAILED, HELLO, LENGTH_BYTES, LOADED, READY, Task
from firelane.contract import ProgressCallback, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.cache import grouping_of
from firelane.program.program import Program

HELLO_S = 60.0
"""Until a rank that was started has to be there."""
END_S = 5.0
"""Until a rank that was told to end is killed."""
MODULE = "firelane.backends.cpu.rank_process"
log = logging.getLogger(__name__)


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
        executor = load_for(settings, program, model_dir, leader.own_config, progress, leader)
        try:
            return RankGroup(executor, leader)
        except BaseException:
            executor.release()
            raise
    except BaseException:
        leader.close()
        raise


def usable_cores() -> set[int]:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


class RankProcess:
    """Process of one rank, started for `task`, which send() tells it."""

    def __init__(self, task: Task) -> None:
        self._task, self._is_ending, self._is_ready = task, False, False
        self.weights_bytes = self.kv_bytes = 0
        self._sock, theirs = socket.socketpair()
        with theirs:
            fds = (theirs.fileno(), task.link_fd, task.slots_fd)
            self._process = subprocess.Popen([sys.executable, "-m", MODULE, str(fds[0])], pass_fds=fds)

    def send(self) -> None:
        """Raises MachineError where nobody reads it."""
        self._sock.settimeout(HELLO_S)
        payload = pickle.dumps(self._task)
        try:
            self._sock.sendall(len(payload).to_bytes(LENGTH_BYTES, "little") + payload)
        except OSError as error:
            raise MachineError(f"{self.name} did not take its task: {error}") from error

    @property
    def name(self) -> str:
        return f"rank {self._task.rank} of the model"

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        """Raises MachineError where it has ended, or is not there after HELLO_S."""
        try:
            if self._sock.recv(1) != HELLO:
                raise MachineError(f"{self.name} {self._ending()} before it began to load")
        except TimeoutError as error:
            raise MachineError(
                f"{self.name} did not appear within {HELLO_S:.0f} s: the machine may be "
                "overloaded, or out of memory"
            ) from error
        self._sock.settimeout(None)
        kind = self._sock.recv(1)
        if kind == FAILED:
            with self._sock.makefile("rb") as stream:
                raise MachineError(f"{self.name}: {stream.read().decode()}")
        if kind != READY:
            raise MachineError(f"{self.name} {self._ending()} while it was loading")
        self.weights_bytes, self.kv_bytes = LOADED.unpack(self._sock.recv(LOADED.size, socket.MSG_WAITALL))
        self._is_ready = True

    def watch(self, on_end: Callable[[str], None]) -> None:
        """Call on_end, from another thread, if it ends before it is told to."""

        def wait() -> None:
            with suppress(OSError):
                self._sock.recv(1)
            if not self._is_ending:
                on_end(f"{self.name} {self._ending()}")

        threading.Thread(target=wait, name=self.name, daemon=True).start()

    def close(self) -> None:
        """Idempotent."""
        self._is_ending = True
        with suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        if not self._is_ready:
            self._process.kill()  # it does not look at its socket while it loads
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ending(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_S)
            return f"ended ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
        return "closed its socket"


@dataclass
class Leader:
    """The rank of this process, as the loader sees it: once sizes are known, it starts the others."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    cores: Sequence[int]
    settings: env.Environment
    limits: StepLimits | None = field(default=None, init=False)
    link: RankLink | None = field(default=None, init=False)
    processes: list[RankProcess] = field(default_factory=list[RankProcess], init=False)
    _programs: list[Program] = field(default_factory=list[Program], init=False)

    def __post_init__(self) -> None:
        config, cores = self.config, len(self.cores)
        tp, pp = config.tensor_parallel_size, config.pipeline_parallel_size
        self.layout = RankLayout.of(self.whole, tp=tp, pp=pp, ep=config.expert_parallel_size)
        if self.ranks > cores:
            raise UsageError(
                f"{config.ranks_option}: this process has {cores} core{'s' * (cores != 1)}, and each rank "
                "needs one; lower it"
            )
        if pp >= MOST_IN_FLIGHT:
            raise UsageError(
                f"--pipeline-parallel-size {pp}: at most {MOST_IN_FLIGHT - 1} stages run on CPUs; lower it"
            )
        if config.activation_dtype != "bf16":
            raise UsageError(
                f"--activation-dtype {config.activation_dtype} with {self.ranks} ranks: they multiply bf16 "
                "numbers; leave one of them out"
            )
        threads = max(1, (config.threads or cores) // self.ranks)
        kv = config.kv_cache_bytes
        self.own_config = msgspec.structs.replace(
            config,
            threads=threads,
            kv_cache_bytes=kv and max(1, kv // self.ranks),
            kv_cache_memory="private",
        )

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def rank(self) -> int:
        """That which draws, so that outputs need not travel."""
        return self.layout.sampler

    @property
    def max_in_flight(self) -> int:
        return self.layout.pp

    def program(self, program: Program) -> Program:
        """Raises UsageError also where block tables would not mean the same on all ranks."""
        self._programs = [rank_program(program, self.layout, rank) for rank in range(self.ranks)]
        if len({own.grouping or grouping_of(own.cache_groups) for own in self._programs}) > 1:
            raise UsageError(
                f"{self.config.ranks_option}: the KV heads of this model cannot be shared evenly "
                "enough; lower it"
            )
        return self._programs[self.rank]

    def sizes(self, program: Program) -> GroupSizes:
        del program
        return GroupSizes.of(self._programs)

    def join(self, layout: Layout, limits: StepLimits) -> tuple[RankLink | None, SlotState | None]:
        self.limits = limits
        layouts = [
            replace(layout, program=own, limits=limits_of(own, limits), forms={}) for own in self._programs
        ]
        self.link = RankLink(layout, self.layout, self.rank, LinkSizes.of(layouts), cores=len(self.cores))
        slots = shared_memory()
        try:
            state = SlotState.allocate(limits, layout.program.vocab_size, fd=slots)
            for rank in range(self.ranks):
                if rank != self.rank:
                    self.processes.append(RankProcess(self._task(rank, slots)))
                    self.processes[-1].send()
        finally:
            os.close(slots)
            self.link.close_fd()
        return self.link, state

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
        for process in self.processes:
            process.close()

    def _task(self, rank: int, slots_fd: int) -> Task:
        assert self.link is not None
        assert self.limits is not None
        return Task(
            program=self.whole,
            model_dir=self.model_dir,
            config=self.own_config,
            rank=rank,
            layout=self.layout,
            limits=self.limits,
            link_sizes=self.link.sizes,
            link_fd=self.link.fd,
            slots_fd=slots_fd,
            cores=self._cores(rank),
            group_cores=len(self.cores),
            log_level=self.settings.log_level,
            log_format=self.config.log_format if isinstance(self.config, EngineConfig) else "text",
        )

    def _cores(self, rank: int) -> tuple[int, ...]:
        each = len(self.cores) // self.ranks
        return tuple(self.cores[rank * each : (rank + 1) * each])


class RankGroup:
    """See contract.Executor: steps of all ranks. Ends with MachineError once a rank is gone."""

    page_memory = None  # each rank has its part of every page

    def __init__(self, executor: CpuExecutor, leader: Leader) -> None:
        """Takes over both, unless it raises MachineError: then the caller keeps them."""
        assert leader.link is not None
        assert leader.limits is not None
        self.limits = leader.limits
        self.max_in_flight = leader.max_in_flight
        self.is_pipelined = leader.max_in_flight > 1
        self._executor, self._leader, self._link = executor, leader, leader.link
        self._ended: str | None = None
        for process in leader.processes:
            process.await_ready()
        for process in leader.processes:
            process.watch(self._end)

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
    def weights_bytes(self) -> int:
        """Of all ranks."""
        return self._executor.weights_bytes + sum(p.weights_bytes for p in self._leader.processes)

    @property
    def kv_bytes(self) -> int:
        return self._executor.kv_bytes + sum(p.kv_bytes for p in self._leader.processes)

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, this one first."""
        return [os.getpid(), *(process.pid for process in self._leader.processes)]

    def busy_seconds(self) -> list[float]:
        """By rank: time spent in steps so far, without waits for the stage before."""
        return self._link.busy_seconds()

    def submit(self, inputs: StepInputs) -> None:
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
        return self._executor.can_sleep

    def standby(self) -> None:
        raise NotImplementedError("ranks do not sleep")

    def wake(self) -> None:
        """Ranks do not sleep."""

    def release(self) -> None:
        """Ends the ranks; idempotent."""
        self._executor.end_group()
        self._leader.close()
        self._executor.release()

    def _check(self) -> None:
        if self._ended is not None:
            raise MachineError(self._ended)

    def _end(self, why: str) -> None:
        """From a thread that watches a rank: nobody waits for it any longer."""
        self._ended = why
        log.error("rank_ended error=%r", why)
        self._executor.end_group()
