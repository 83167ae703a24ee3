"""A model by several processes of this machine: the executor in front, which is the first rank itself, and
the processes of the others."""

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
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.backends.cpu.layout import Layout
from firelane.backends.cpu.link import RankLink
from firelane.backends.cpu.loader import load_for
from firelane.backends.cpu.rank_task import FAILED, HELLO, LENGTH_BYTES, READY, Task
from firelane.contract import ProgressCallback, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.ranks import RankLayout, rank_program
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
    """The executor in front of the ranks that the config asks for, which divide this process's cores.

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
    """The first rank, as the loader sees it: once sizes are known, it starts the others."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    cores: Sequence[int]
    settings: env.Environment
    link: RankLink | None = field(default=None, init=False)
    processes: list[RankProcess] = field(default_factory=list[RankProcess], init=False)

    def __post_init__(self) -> None:
        tp, ep = self.config.tensor_parallel_size, self.config.expert_parallel_size
        self.layout = RankLayout.of(self.whole, tp=tp, ep=ep)
        size, cores = self.layout.ranks, len(self.cores)
        if size > cores:
            raise UsageError(
                f"{self.config.ranks_option}: this process has {cores} core{'s' * (cores != 1)}, and each "
                "rank needs one; lower it"
            )
        threads = max(1, (self.config.threads or cores) // size)
        kv = self.config.kv_cache_bytes
        self.own_config = msgspec.structs.replace(
            self.config, threads=threads, kv_cache_bytes=kv and max(1, kv // size), kv_cache_memory="private"
        )

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def program(self, program: Program) -> Program:
        """Raises UsageError also where block tables would not mean the same on all ranks."""
        programs = [rank_program(program, self.layout, rank) for rank in range(self.ranks)]
        if len({_cache_groups(own) for own in programs}) > 1:
            raise UsageError(
                f"{self.config.ranks_option}: the KV heads of this model cannot be shared evenly "
                "enough; lower it"
            )
        return programs[0]

    def limits(self, program: Program) -> StepLimits | None:
        del program
        return None

    def join(self, layout: Layout) -> tuple[RankLink | None, SlotState | None]:
        self.link = RankLink(layout, 0, self.ranks, cores=len(self.cores))
        slots = shared_memory()
        try:
            state = SlotState.allocate(layout.limits, layout.program.vocab_size, fd=slots)
            for rank in range(1, self.ranks):
                self.processes.append(RankProcess(self._task(rank, layout.limits, slots)))
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
        os.sched_setaffinity(0, self._cores(0))
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)

    def close(self) -> None:
        for process in self.processes:
            process.close()

    def _task(self, rank: int, sizes: StepLimits, slots_fd: int) -> Task:
        assert self.link is not None
        return Task(
            program=self.whole,
            model_dir=self.model_dir,
            config=self.own_config,
            rank=rank,
            layout=self.layout,
            sizes=sizes,
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


def _cache_groups(program: Program) -> tuple[tuple[int, ...], ...]:
    """The layers of each group, whose pages the same block tables name on all ranks."""
    return tuple(tuple(layer.layer for layer in group.layers) for group in program.cache_groups)


class RankGroup:
    """See contract.Executor: steps of all ranks. Ends with MachineError once a rank is gone."""

    max_in_flight = 1

    def __init__(self, executor: CpuExecutor, leader: Leader) -> None:
        """Takes over both, unless it raises MachineError: then the caller keeps them."""
        assert leader.link is not None
        self._executor, self._leader, self._link = executor, leader, leader.link
        self._ended: str | None = None
        for process in leader.processes:
            process.await_ready()
        for process in leader.processes:
            process.watch(self._end)

    @property
    def limits(self) -> StepLimits:
        return self._executor.limits

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
        """Of all ranks, as those of the first one."""
        return self._executor.weights_bytes * self._leader.ranks

    @property
    def kv_bytes(self) -> int:
        return self._executor.kv_bytes * self._leader.ranks

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, this one first."""
        return [os.getpid(), *(process.pid for process in self._leader.processes)]

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
