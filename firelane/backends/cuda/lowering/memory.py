"""The plan of the device's memory: weights, then the step's buffers, then a reserve, and the KV cache gets
what is left."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.device import Fence, Graph, Shared, StageLink, Transfer
from firelane.backends.cuda.device.launch import NOTHING, Work
from firelane.backends.cuda.lowering.step_memory import Sizes, StepMemory
from firelane.contract import BackendDefaults, StepLimits, resolve_limits, smallest_limits
from firelane.engine_config import ExecutorConfig
from firelane.errors import OutOfMemoryError
from firelane.program.program import Program

GIB = 1 << 30
RESERVE_BYTES = (
    768 << 20
)  # graphs, compiled kernels, the library's workspace, and what is cut off by rounding

SizesOf = Callable[[StepLimits], Sizes]


@dataclass(frozen=True, kw_only=True)
class MemoryPlan:
    """In bytes. free: before anything is placed; step: buffers of a step, without the KV cache."""

    free: int
    weights: int
    step: int
    reserve: int
    kv: int
    limits: StepLimits

    def __str__(self) -> str:
        parts = ("weights", "step", "reserve", "kv")
        given = ", ".join(f"{name} {getattr(self, name) / GIB:.2f}" for name in parts)
        return f"of {self.free / GIB:.2f} GiB: {given} GiB"


def plan_memory(
    program: Program,
    config: ExecutorConfig,
    defaults: BackendDefaults,
    *,
    free_bytes: int,
    weights_bytes: int,
    staging_bytes: int,
    sizes_of: SizesOf,
) -> MemoryPlan:
    """staging_bytes: needed while weights are loaded, beside them, and free again before the KV cache is
    placed.

    Raises OutOfMemoryError where the weights, or one sequence beside them, do not fit.
    """
    limits = smallest_limits(program, config, defaults)
    step = step_bytes(sizes_of(limits)) - kept_bytes(program, limits)
    if config.beside is not None:  # its steps are taken to need as much
        free_bytes -= config.beside.weights_bytes + config.beside.executors * (step + RESERVE_BYTES)
    left = free_bytes - weights_bytes - max(step + RESERVE_BYTES, staging_bytes)
    if left <= 0:
        raise OutOfMemoryError(
            f"the device has {free_bytes / GIB:.1f} GiB free; the weights need {weights_bytes / GIB:.1f} GiB "
            f"and the step's buffers {(step + RESERVE_BYTES) / GIB:.1f} GiB: end what else runs on it, serve "
            "a smaller model, or lower --max-num-batched-tokens"
        )
    left = free_bytes - weights_bytes - step - RESERVE_BYTES
    limits = resolve_limits(program, config, defaults, free_bytes=left)
    return MemoryPlan(
        free=free_bytes,
        weights=weights_bytes,
        step=step,
        reserve=RESERVE_BYTES,
        kv=kept_bytes(program, limits),
        limits=limits,
    )


def fixed_memory(
    program: Program, limits: StepLimits, *, free_bytes: int, weights_bytes: int, sizes_of: SizesOf
) -> MemoryPlan:
    """plan_memory() of sizes that are given. Raises OutOfMemoryError where they do not fit."""
    kv = kept_bytes(program, limits)
    step = step_bytes(sizes_of(limits)) - kv
    needed = weights_bytes + step + kv + RESERVE_BYTES
    if needed > free_bytes:
        raise OutOfMemoryError(
            f"the device has {free_bytes / GIB:.1f} GiB free, and a rank needs {needed / GIB:.1f} GiB: end "
            "what else runs on it, or give the KV cache less with --kv-cache-gib"
        )
    return MemoryPlan(
        free=free_bytes, weights=weights_bytes, step=step, reserve=RESERVE_BYTES, kv=kv, limits=limits
    )


def kept_bytes(program: Program, limits: StepLimits) -> int:
    """Bytes of the pages and the recurrent states of sequences."""
    pages = limits.num_blocks * program.kv_bytes_per_token * limits.block_size
    return pages + limits.num_states * limits.state_bytes


def step_bytes(sizes: Sizes) -> int:
    """Bytes that StepMemory takes of the device: the very same allocations, on a device that only counts."""
    device = CountingDevice()
    StepMemory.allocate(sizes, device)
    return device.nbytes


class CountingDevice:
    """A Device without memory. `nbytes`: of what was asked of it, each piece rounded up as CUDA does."""

    name = "counting"
    arithmetic = ""
    num_sms = 1
    GRAIN_BYTES = 512

    def __init__(self) -> None:
        self.nbytes = 0

    def on_stream(self) -> AbstractContextManager[object]:
        raise NotImplementedError

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        self.nbytes += -(-nbytes // self.GRAIN_BYTES) * self.GRAIN_BYTES
        return torch.empty(shape, dtype=dtype, device="meta")

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return self.empty(*shape, dtype=dtype)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def register(self, address: int, nbytes: int) -> None:
        raise NotImplementedError

    def shared(self, nbytes: int, *, ranks: int) -> Shared:
        return CountedShared(self.empty(nbytes, dtype=torch.uint8), ranks)

    def stage_link(self, nbytes: int, *, received: int) -> StageLink:
        del received
        return CountedLink(self.empty(nbytes, dtype=torch.uint8))

    def upload(self, target: Tensor, source: Tensor) -> Fence:
        raise NotImplementedError

    def copy_beside(self, copies: Sequence[tuple[Tensor, Tensor]]) -> Fence:
        raise NotImplementedError

    def capture(self, work: Callable[[], None]) -> Graph:
        raise NotImplementedError

    def mark(self) -> Fence:
        raise NotImplementedError

    def free_bytes(self) -> int:
        raise NotImplementedError

    def drain(self) -> bool:
        raise NotImplementedError

    def trim(self) -> None:
        raise NotImplementedError


@dataclass(frozen=True)
class CountedLink:
    """A link of a CountingDevice."""

    memory: Tensor

    def send(self, number: int, first: int, nbytes: int) -> Transfer:
        del number
        return Transfer(before=NOTHING, memory=self.memory[first : first + nbytes], after=NOTHING)

    receive = send


@dataclass(frozen=True)
class CountedShared:
    """Shared memory of a CountingDevice."""

    mine: Tensor
    ranks: int

    def meeting(self, first: int, nbytes: int) -> tuple[Work, tuple[Tensor, ...]]:
        return NOTHING, (self.mine[first : first + nbytes],) * self.ranks
