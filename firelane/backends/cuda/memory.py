"""What the device's memory is given to: weights, then the step's buffers, then a reserve, and the KV cache
gets what is left."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firelane.backends.contract import StepLimits
from firelane.backends.cuda.device import Fence, Graph
from firelane.backends.cuda.step_memory import Sizes, StepMemory
from firelane.backends.request import SettledRequest
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
    request: SettledRequest,
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
    block_size = request.block_size
    block_bytes = program.kv_bytes_per_token * block_size
    longest = request.max_model_len or program.max_model_len
    limits = _limits(request, longest, block_size, num_blocks=-(-longest // block_size))
    step = step_bytes(sizes_of(limits)) - limits.num_blocks * block_bytes
    left = free_bytes - weights_bytes - max(step + RESERVE_BYTES, staging_bytes)
    if left <= 0:
        raise OutOfMemoryError(
            f"the device has {free_bytes / GIB:.1f} GiB free; the weights need {weights_bytes / GIB:.1f} GiB "
            f"and the step's buffers {(step + RESERVE_BYTES) / GIB:.1f} GiB: end what else runs on it, serve "
            "a smaller model, or lower --max-num-batched-tokens"
        )
    left = free_bytes - weights_bytes - step - RESERVE_BYTES
    limits = _with_blocks(limits, request, left, block_bytes)
    return MemoryPlan(
        free=free_bytes,
        weights=weights_bytes,
        step=step,
        reserve=RESERVE_BYTES,
        kv=limits.num_blocks * block_bytes,
        limits=limits,
    )


def _limits(request: SettledRequest, longest: int, block_size: int, *, num_blocks: int) -> StepLimits:
    return StepLimits(
        max_num_seqs=request.max_num_seqs,
        max_num_batched_tokens=request.max_num_batched_tokens,
        max_output_rows=request.max_output_rows,
        max_model_len=longest,
        block_size=block_size,
        num_blocks=num_blocks,
    )


def _with_blocks(limits: StepLimits, request: SettledRequest, left: int, block_bytes: int) -> StepLimits:
    budget = request.kv_cache_bytes or left
    blocks = budget // block_bytes
    longest = limits.max_model_len
    if request.max_model_len is None:
        longest = min(longest, blocks * limits.block_size)
    per_sequence = -(-longest // limits.block_size)
    if longest < 1 or blocks < per_sequence:
        needed = max(per_sequence, 1) * block_bytes / GIB
        raise OutOfMemoryError(
            f"the KV cache has room for {blocks * limits.block_size} tokens in {budget / GIB:.2f} GiB of the "
            f"device, and one sequence of {longest} needs {needed:.2f} GiB: lower --max-model-len, raise "
            "--kv-cache-gib, or end what else runs on the device"
        )
    blocks = min(blocks, per_sequence * limits.max_num_seqs)
    if blocks * block_bytes > left:
        raise OutOfMemoryError(
            f"--kv-cache-gib {budget / GIB:.2f}: {left / GIB:.2f} GiB of the device are free beside the "
            "weights and the step's buffers; lower it, or leave it out"
        )
    return replace(limits, max_model_len=longest, num_blocks=blocks)


def step_bytes(sizes: Sizes) -> int:
    """What StepMemory takes of the device: the very same allocations, on a device that only counts."""
    device = CountingDevice()
    StepMemory.allocate(sizes, device)
    return device.nbytes


class CountingDevice:
    """A Device without memory. `nbytes`: of what was asked of it, each piece rounded up as CUDA does."""

    name = "counting"
    num_sms = 1
    GRAIN_BYTES = 512

    def __init__(self) -> None:
        self.nbytes = 0

    def empty(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        nbytes = math.prod(shape) * dtype.itemsize
        self.nbytes += -(-nbytes // self.GRAIN_BYTES) * self.GRAIN_BYTES
        return torch.empty(shape, dtype=dtype, device="meta")

    def zeros(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return self.empty(*shape, dtype=dtype)

    def pinned(self, *shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    def upload(self, target: Tensor, source: Tensor) -> Fence:
        raise NotImplementedError

    def capture(self, work: Callable[[], None]) -> Graph:
        raise NotImplementedError

    def mark(self) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        raise NotImplementedError

    def free_bytes(self) -> int:
        raise NotImplementedError

    def release(self) -> None:
        pass
