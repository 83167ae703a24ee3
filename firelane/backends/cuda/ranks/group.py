"""A model on several GPUs of this machine: loads the executor in front, which is itself the rank that draws
tokens, and has the processes of the others started."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.backends.background import in_background
from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loader import load_on, opened
from firelane.backends.ranks.group import RankGroup
from firelane.backends.ranks.leader import Interconnect, Leader
from firelane.backends.ranks.process import RankProcess
from firelane.backends.ranks.step_ring import StepRing, shared_ring
from firelane.backends.ranks.words import STEP
from firelane.contract import ProgressCallback, SlotState, StepInputs, StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.errors import MachineError, UsageError
from firelane.parallel.hosts import HostLayout
from firelane.parallel.ranks import RankLayout
from firelane.program.program import Program
from firelane.weights.quantizing.schemes import WHILE_PACKING

MODULE = "firelane.backends.cuda.ranks.worker"
POLL_S = 0.1
"""Between looks at the other processes, while this one loads."""


def load_group(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> RankGroup:
    """The executor in front of the ranks that `config` asks for, each on a GPU of its own.

    Raises what loader.load() does, UsageError for sizes that no cut exists for, MachineError for a rank that
    does not appear or ends.
    """
    from firelane.backends.cuda.ranks.device import gpu_of

    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="firelane-ranks-")))
        leader, interconnect = leader_of(program, model_dir, config, directory / "meeting")
        device = gpu_of(leader.rank, leader.hosts.ranks, interconnect.meeting)
        return load_led(leader, interconnect, device, progress, stack)


def load_led(
    leader: Leader,
    interconnect: StepInterconnect,
    device: AbstractContextManager[Device],
    progress: ProgressCallback,
    stack: ExitStack,
) -> RankGroup:
    """The group that `leader` starts from the rank of `device`, the one that draws. What `stack` holds ends
    with the group."""
    program, checkpoint = opened(leader.whole, leader.model_dir, leader.config)
    check_stages(leader, program)
    is_closed = threading.Event()
    stack.callback(is_closed.set)
    opened_device = stack.enter_context(device)
    stack.callback(leader.close)  # what others still wait for must not keep the device
    interconnect.executor = executor = _watching(
        leader.processes,
        lambda: load_on(opened_device, program, checkpoint, leader.config, progress, leader),
        until=is_closed,
    )
    stack.callback(executor.release)
    return RankGroup(executor, leader, stack)


def leader_of(
    program: Program, model_dir: Path, config: ExecutorConfig, meeting: Path, module: str = MODULE
) -> tuple[Leader, StepInterconnect]:
    """The rank that draws tokens. meeting: of Peers; module: what the other ranks' processes run. Raises
    UsageError."""
    _check_options(config)
    layout = RankLayout.of(
        program,
        one_cache=False,
        tp=config.tensor_parallel_size,
        pp=config.pipeline_parallel_size,
        ep=config.expert_parallel_size,
    )
    kv, interconnect = config.kv_cache_bytes, StepInterconnect(layout.pp, meeting)
    leader = Leader(
        hosts=HostLayout(ranks=layout),
        whole=program,
        model_dir=model_dir,
        config=msgspec.structs.replace(config, kv_cache_bytes=kv and max(1, kv // layout.ranks)),
        interconnect=interconnect,
        module=module,
    )
    return leader, interconnect


def check_stages(leader: Leader, program: Program) -> None:
    """Raises UsageError for sizes that no cut exists for, where block tables would not mean the same on all
    ranks, and for a stage without attention."""
    if not all(own.cache_layers for own in leader.programs(program).values()):
        asked = leader.config.ranks_option
        raise UsageError(f"{asked}: a stage would have no attention layer, which needs a CPU; lower it")


def _check_options(config: ExecutorConfig) -> None:
    asked = config.ranks_option
    if config.weights in (*WHILE_PACKING, "lossless"):
        raise UsageError(
            f"--weights {config.weights} with {asked}: ranks on GPUs keep weights as the checkpoint has "
            "them; leave it out"
        )
    if config.gemm == "library":
        raise UsageError(f"gemm = library with {asked}: leave one of them out")


def _watching(
    processes: Sequence[RankProcess], work: Callable[[], CudaExecutor], *, until: threading.Event
) -> CudaExecutor:
    """The result of `work`, which runs in another thread, for where ranks meet PyTorch waits for all of them
    without an end. `until`: see in_background. Raises RankEndedError as soon as one has ended."""
    running = in_background(work, name="load", until=until)
    while not wait([running], POLL_S).done:
        for process in processes:
            process.check()
    return running.result()


@dataclass(frozen=True, kw_only=True)
class GpuShare:
    """The part of a GPU rank's Task that is of GPUs alone."""

    ring_fd: int
    """The memory of StepRing, inherited."""
    meeting: Path
    """The file where Peers meet."""


class StepInterconnect(Interconnect):
    """Ranks on GPUs read steps in memory of the host (StepRing), and are told over their sockets that one is
    there. Rows are exchanged by their devices (Peers)."""

    lost_errors = (RuntimeError, MachineError)

    def __init__(self, steps: int, meeting: Path) -> None:
        """steps: in flight at most."""
        self.meeting, self.steps = meeting, steps
        self.executor: CudaExecutor | None = None
        """That of this rank, from when it is loaded."""
        self._ring: StepRing | None = None
        self._ring_fd = -1
        self._has_ended = False

    def open(self, limits: StepLimits) -> None:
        self._ring_fd = os.memfd_create("firelane-steps", os.MFD_CLOEXEC)
        self._ring = shared_ring(self._ring_fd, limits, self.steps)

    def share(self, rank: int) -> GpuShare:
        del rank
        return GpuShare(ring_fd=self._ring_fd, meeting=self.meeting)

    def fds(self, rank: int) -> Sequence[int]:
        del rank
        return (self._ring_fd,)

    def close_fds(self) -> None:
        os.close(self._ring_fd)

    def hand_out(self, inputs: StepInputs, state: SlotState, processes: Sequence[RankProcess]) -> None:
        del state  # lies in memory that all share
        assert self._ring is not None
        self._ring.write(inputs)
        for process in processes:
            process.order(STEP)

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    def end(self, why: str) -> None:
        self._has_ended = True
        if self.executor is not None:
            self.executor.give_up(why)
