"""A model on several GPUs of this machine: the executor in front, which is the first rank itself, and the
processes of the others."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from firelane import env
from firelane.backends.cuda.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loader import load_on, opened
from firelane.backends.cuda.rank_task import Task
from firelane.backends.cuda.step_link import StepLink
from firelane.backends.rank_process import RankProcess
from firelane.contract import ProgressCallback, SlotState, StepInputs, StepLimits, StepOutputs
from firelane.contract.slots import shared_memory
from firelane.engine_config import EngineConfig, ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.program.program import Program
from firelane.weights.quantizing.schemes import WHILE_PACKING

MODULE = "firelane.backends.cuda.rank_process"
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
        return load_led(leader, gpu_of(0, leader.ranks, leader.meeting), progress, stack)


def load_led(
    leader: Leader, device: AbstractContextManager[Device], progress: ProgressCallback, stack: ExitStack
) -> RankGroup:
    """The group that `leader` starts from `device`'s rank. What `stack` holds ends with the group."""
    program, checkpoint = opened(leader.whole, leader.model_dir, leader.own_config)
    leader.check(program)
    opened_device = stack.enter_context(device)
    stack.callback(leader.close)  # what others still wait for must not keep the device
    executor = load_on(opened_device, program, checkpoint, leader.own_config, progress, leader)
    stack.callback(executor.release)
    for process in leader.processes:
        process.await_ready()
    return RankGroup(executor, leader, stack.pop_all())


@dataclass
class Leader:
    """The first rank, as the loader sees it: the others begin when their sizes are known."""

    whole: Program
    model_dir: Path
    config: ExecutorConfig
    meeting: Path
    module: str = MODULE
    link: StepLink | None = field(default=None, init=False)
    processes: list[RankProcess] = field(default_factory=list[RankProcess], init=False)

    def __post_init__(self) -> None:
        size = self.config.tensor_parallel_size
        if self.config.weights in (*WHILE_PACKING, "lossless"):
            raise UsageError(
                f"--weights {self.config.weights} with --tensor-parallel-size {size}: ranks on GPUs keep "
                "weights as the checkpoint has them; leave it out"
            )
        if self.config.gemm == "library":
            raise UsageError(f"--gemm library with --tensor-parallel-size {size}: leave one of them out")
        self.layout = RankLayout(tp=size, experts=size if _has_experts(self.whole) else 1)
        kv = self.config.kv_cache_bytes
        self.own_config = msgspec.structs.replace(self.config, kv_cache_bytes=kv and max(1, kv // size))

    @property
    def ranks(self) -> int:
        return self.layout.ranks

    def check(self, program: Program) -> None:
        """Raises UsageError for sizes that no cut exists for, and where block tables would not mean the same
        on all ranks."""
        programs = [rank_program(program, self.layout, rank) for rank in range(self.ranks)]
        if len({_cache_groups(own) for own in programs}) > 1:
            raise UsageError(
                f"--tensor-parallel-size {self.ranks}: the KV heads of this model cannot be shared evenly "
                "enough; lower it"
            )

    def program(self, program: Program) -> Program:
        return rank_program(program, self.layout, 0)

    def limits(self, program: Program) -> StepLimits | None:
        del program
        return None

    def join(self, limits: StepLimits, vocab_size: int) -> SlotState | None:
        self.link, slots = StepLink(limits), shared_memory()
        try:
            state = SlotState.allocate(limits, vocab_size, fd=slots)
            for rank in range(1, self.ranks):
                task = self._task(rank, limits, slots)
                self.processes.append(RankProcess(self.module, rank, task, (task.link_fd, slots)))
                self.processes[-1].send()
        finally:
            os.close(slots)
            self.link.close_fd()
        return state

    def meet_loaded(self) -> None:
        for process in self.processes:
            process.await_loaded()

    def close(self) -> None:
        """Idempotent."""
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
            meeting=self.meeting,
            link_fd=self.link.fd,
            slots_fd=slots_fd,
            log_level=env.read().log_level,
            log_format=self.config.log_format if isinstance(self.config, EngineConfig) else "text",
        )


def _cache_groups(program: Program) -> tuple[tuple[int, ...], ...]:
    """The layers of each group, whose pages the same block tables name on all ranks."""
    return tuple(tuple(layer.layer for layer in group.layers) for group in program.cache_groups)


def _has_experts(program: Program) -> bool:
    return any(len(w.shape) == 3 and w.layout.by_expert and w.matrices > 1 for w in program.weights)


class RankGroup:
    """See contract.Executor: steps of all ranks. Ends with MachineError once a rank is gone.

    One step is in flight: the token that the first rank draws lies in host memory, where the others read it
    when the next step begins.
    """

    max_in_flight = 1
    is_pipelined = False
    page_memory = None

    def __init__(self, executor: CudaExecutor, leader: Leader, resources: ExitStack) -> None:
        """resources: end with it, the last one first."""
        assert leader.link is not None
        self._executor, self._leader, self._link = executor, leader, leader.link
        self._resources = resources
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

    def settle(self) -> None:
        """Nothing works beside the steps."""

    def submit(self, inputs: StepInputs) -> None:
        self._check()
        self._link.hand_out(inputs)
        for process in self._leader.processes:
            process.begin_step()
        with self._blaming():
            self._executor.submit(inputs)

    def wait(self) -> StepOutputs:
        with self._blaming():
            outputs = self._executor.wait()
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

    def standby(self) -> None:
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
