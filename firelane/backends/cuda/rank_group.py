"""A model on several GPUs of this machine: the executor in front, which is itself the rank that draws tokens,
and the processes of the others."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends.background import in_background
from firelane.backends.cuda.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loader import load_on, opened
from firelane.backends.cuda.rank_task import Task
from firelane.backends.cuda.step_link import StepLink
from firelane.backends.rank_process import RankProcess
from firelane.backends.rank_words import STEP
from firelane.contract import (
    GivenBack,
    ProgressCallback,
    SlotState,
    StepInputs,
    StepLimits,
    StepOutputs,
)
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.ranks import RankLayout, rank_program, rank_programs
from firelane.program.program import Program
from firelane.weights.quantizing.schemes import WHILE_PACKING

MODULE = "firelane.backends.cuda.rank_process"
POLL_S = 0.1
"""Between looks at the other processes, while this one loads."""
BLAME_S = 1.0
"""Until a rank that is gone was noticed, when a step has failed."""
log = logging.getLogger(__name__)


def load_group(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> RankGroup:
    """The executor in front of the ranks that `config` asks for, each on a GPU of its own.

    Raises what loader.load() does, UsageError for sizes that no cut exists for, MachineError for a rank that
    does not appear or ends.
    """
    from firelane.backends.cuda.rank_device import gpu_of

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firelane-ranks-")))
        leader = Leader(program, model_dir, config, directory / "meeting")
        stack.callback(leader.close)
        return load_led(leader, gpu_of(leader.rank, leader.layout, leader.meeting), progress, stack)


def load_led(
    leader: Leader, device: AbstractContextManager[Device], progress: ProgressCallback, stack: ExitStack
) -> RankGroup:
    """The group that `leader` starts from the rank of `device`, the one that draws. What `stack` holds ends
    with the group."""
    program, checkpoint = opened(leader.whole, leader.model_dir, leader.own_config)
    leader.check(program)
    opened_device = stack.enter_context(device)
    stack.callback(leader.close)  # what others still wait for must not keep the device
    executor = leader.watching(
        lambda: load_on(opened_device, program, checkpoint, leader.own_config, progress, leader)
    )
    stack.callback(executor.release)
    for process in leader.processes:
        process.await_ready()
    return RankGroup(executor, leader, stack.pop_all())


@dataclass
class Leader:
    """The rank that draws, as the loader sees it: the others begin when their sizes are known."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    meeting: Path
    module: str = MODULE
    link: StepLink | None = field(default=None, init=False)
    processes: list[RankProcess] = field(default_factory=list[RankProcess], init=False)
    _is_closed: threading.Event = field(default_factory=threading.Event, init=False)

    def __post_init__(self) -> None:
        config, asked = self.config, self.config.ranks_option
        if config.weights in (*WHILE_PACKING, "lossless"):
            raise UsageError(
                f"--weights {config.weights} with {asked}: ranks on GPUs keep weights as the checkpoint has "
                "them; leave it out"
            )
        if config.gemm == "library":
            raise UsageError(f"--gemm library with {asked}: leave one of them out")
        self.layout = RankLayout.of(
            self.whole,
            one_cache=False,
            tp=config.tensor_parallel_size,
            pp=config.pipeline_parallel_size,
            ep=config.expert_parallel_size,
        )
        kv = config.kv_cache_bytes
        self.own_config = msgspec.structs.replace(config, kv_cache_bytes=kv and max(1, kv // self.ranks))

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    @property
    def rank(self) -> int:
        """Of this process."""
        return self.layout.sampler

    def check(self, program: Program) -> None:
        """Raises UsageError for sizes that no cut exists for, where block tables would not mean the same on
        all ranks, and for a stage without attention."""
        asked = self.config.ranks_option
        programs = rank_programs(program, self.layout, asked)
        if not all(own.cache_layers for own in programs):
            raise UsageError(f"{asked}: a stage would have no attention layer, which needs a CPU; lower it")

    def program(self, program: Program) -> Program:
        return rank_program(program, self.layout, self.rank)

    def others(self, program: Program) -> tuple[Program, ...]:
        firsts = range(0, self.rank, self.layout.lanes)
        return tuple(rank_program(program, self.layout, first) for first in firsts)

    def limits(self, program: Program) -> StepLimits | None:
        del program
        return None

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        self.link, slots = StepLink(limits, steps=self.layout.pp), shared_memory()
        try:
            state = SlotState.allocate(limits, vocab_size, fd=slots)
            for rank in range(self.ranks):
                if rank == self.rank:
                    continue
                task = self._task(rank, limits, slots)
                self.processes.append(RankProcess(self.module, rank, task, (task.link_fd, slots)))
                self.processes[-1].send()
        finally:
            os.close(slots)
            self.link.close_fd()
        return state

    def watching(self, work: Callable[[], CudaExecutor]) -> CudaExecutor:
        """Result of `work`, which runs in another thread, for where ranks meet PyTorch waits for all of them
        without an end. Raises RankEndedError as soon as one has ended."""
        running = in_background(work, name="load", until=self._is_closed)
        while not wait([running], POLL_S).done:
            for process in self.processes:
                process.check()
        return running.result()

    def meet_loaded(self) -> None:
        for process in self.processes:
            process.await_loaded()

    def close(self) -> None:
        """Idempotent."""
        for process in self.processes:
            process.close()
        self._is_closed.set()

    def _task(self, rank: int, sizes: StepLimits, slots_fd: int) -> Task:
        assert self.link is not None
        return Task(
            program=self.whole,
            model_dir=self.model_dir,
            config=self.own_config,
            rank=rank,
            layout=self.layout,
            sizes=sizes,
            meeting=self.meeting,
            link_fd=self.link.fd,
            slots_fd=slots_fd,
            log_level=env.read().log_level,
            log_format=self.config.log_format if isinstance(self.config, EngineConfig) else "text",
        )


class RankGroup:
    """See contract.Executor: steps of all ranks. Ends with MachineError once a rank is gone.

    As many steps are in flight as stages, none of which needs a token of another: the token that is drawn
    lies in host memory, where the ranks read it when the next step of its sequence begins.
    """

    page_memory = state_memory = None

    def __init__(self, executor: CudaExecutor, leader: Leader, resources: ExitStack) -> None:
        """resources: end with it, the last one first."""
        assert leader.link is not None
        self._executor, self._leader, self._link = executor, leader, leader.link
        self._resources = resources
        self.max_in_flight = leader.layout.pp
        self.is_pipelined = self.max_in_flight > 1
        self._own_in_flight, self._waiting = 0, deque[StepInputs]()
        self._ended, self._is_over = "", threading.Event()
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
    def can_generate(self) -> bool:
        return self._executor.can_generate

    @property
    def arithmetic(self) -> str:
        return self._executor.arithmetic

    @property
    def weights_bytes(self) -> int:
        """Of all ranks, as if they were those of this one."""
        return self._executor.weights_bytes * self._leader.ranks

    @property
    def kv_bytes(self) -> int:
        return self._executor.kv_bytes * self._leader.ranks

    @property
    def pids(self) -> list[int]:
        """Processes of the ranks, this one first."""
        return [os.getpid(), *(process.pid for process in self._leader.processes)]

    def settle(self) -> None:
        """Nothing works beside the steps."""

    def submit(self, inputs: StepInputs) -> None:
        self._check()
        self._link.hand_out(inputs)
        for process in self._leader.processes:
            process.say(STEP)  # its inputs lie where it reads them
        self._waiting.append(self._link.receive())
        with self._blaming():
            self._launch()

    def _launch(self) -> None:
        """This rank's part of the steps that wait for it, as many as its executor takes."""
        while self._waiting and self._own_in_flight < self._executor.max_in_flight:
            self._executor.submit(self._waiting.popleft())
            self._own_in_flight += 1

    def wait(self) -> StepOutputs:
        with self._blaming():
            outputs = self._executor.wait()
            self._own_in_flight -= 1
            self._launch()
        self._check()
        return outputs

    @contextmanager
    def _blaming(self) -> Generator[None]:
        """A rank that is gone makes many a thing fail, and what fails may be seen before it is."""
        try:
            yield
        except (MachineError, RuntimeError) as error:
            self._is_over.wait(BLAME_S)
            self._check()
            if isinstance(error, MachineError):
                raise
            raise MachineError(f"the ranks of the model cannot exchange rows: {error}") from error

    @property
    def can_sleep(self) -> bool:
        return False

    def standby(self) -> GivenBack:
        raise NotImplementedError("ranks do not sleep")

    def wake(self) -> None:
        """Ranks do not sleep."""

    def release(self) -> None:
        """Ends the ranks; idempotent."""
        self._leader.close()
        self._resources.close()

    def _check(self) -> None:
        if self._ended:
            raise MachineError(self._ended)

    def _end(self, why: str) -> None:
        """From a thread that watches a rank: nobody waits for it any longer."""
        self._ended = why
        self._is_over.set()
        log.error("rank_ended error=%r", why)
        self._executor.give_up(why)
