"""Load a program on the GPU: the kernels compile while the weights are read; then the memory that is left is
given out, and every bucket's graph is captured."""

from __future__ import annotations

import logging
import os
import time
from itertools import chain
from pathlib import Path

from triton import knobs

from firelane.backends.background import in_background
from firelane.backends.cuda.assembly import OVERLAP, assemble, compile_all, lower_all, sizes_of
from firelane.backends.cuda.buckets import Bucket, make_buckets
from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loading import load_weights
from firelane.backends.cuda.memory import GIB, CountingDevice, MemoryPlan, plan_memory
from firelane.backends.cuda.packing import work_ahead
from firelane.backends.cuda.placement import may_be_window, placements, planned_bytes, staging_bytes
from firelane.backends.cuda.product_plan import ProductPlan
from firelane.backends.cuda.stand_ins import stand_ins
from firelane.backends.cuda.step_memory import StepMemory
from firelane.backends.cuda.tuning import store
from firelane.backends.cuda.weights import DeviceWeights
from firelane.backends.request import ExecutorRequest, ProgressCallback, SettledRequest
from firelane.program.program import Program
from firelane.program.values import Weight
from firelane.weights.checkpoint import Checkpoint

BLOCK_SIZE = 64  # a tile of attention's positions is then one block
MAX_NUM_BATCHED_TOKENS = 2048
READERS = 8
log = logging.getLogger(__name__)


def load(
    program: Program, model_dir: Path, request: ExecutorRequest, progress: ProgressCallback
) -> CudaExecutor:
    """The executor of `program` with the weights of `model_dir`, on the first GPU.

    Raises CheckpointError, OutOfMemoryError, CompilerError, MachineError, UnsupportedModelError.
    """
    checkpoint = Checkpoint.open(model_dir)
    checkpoint.check_against(program)
    settled = request.settled(block_size=BLOCK_SIZE, max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS)
    knobs.cache.dir = str(settled.cache_dir / "triton")
    return load_on(CudaDevice(), program, checkpoint, settled, progress)


def load_on(
    device: Device,
    program: Program,
    checkpoint: Checkpoint,
    request: SettledRequest,
    progress: ProgressCallback,
) -> CudaExecutor:
    """As load(), on a given device."""
    before = device.free_bytes()
    expected = _expected_plan(program, request, device)
    early = _memory_plan(
        program, request, expected, free_bytes=before, weights_bytes=planned_bytes(program, request.weights)
    )
    compiled = in_background(
        lambda: _compile_early(program, request, early, expected, device, progress), name="compile"
    )

    def watchful(stage: str, done: float, total: float, unit: str, /) -> None:
        """A kernel that does not compile ends the loading."""
        if compiled.done():
            compiled.result()
        progress(stage, done, total, unit)

    threads = request.threads or min(READERS, os.cpu_count() or 1)
    weights = load_weights(
        program, checkpoint, device, mode=request.weights, threads=threads, progress=watchful
    )
    memory = _memory_plan(
        program,
        request,
        expected,
        free_bytes=device.free_bytes() + weights.nbytes,
        weights_bytes=weights.nbytes,
    )
    compiled.result()
    executor = _assemble(device, memory, weights, expected, progress)
    _report(memory, before - device.free_bytes(), executor)
    return executor


def _assemble(
    device: Device,
    memory: MemoryPlan,
    weights: DeviceWeights,
    expected: ProductPlan,
    progress: ProgressCallback,
) -> CudaExecutor:
    total, done = len(make_buckets(memory.limits)), 0

    def captured(_: Bucket) -> None:
        nonlocal done
        done += 1
        progress("capture", done, total, "graph")

    return assemble(
        expected.program,
        limits=memory.limits,
        device=device,
        weights=weights,
        table=expected.table,
        gemm=expected.gemm,
        captured=captured,
        overlap=OVERLAP,
    )


def _expected_plan(program: Program, request: SettledRequest, device: Device) -> ProductPlan:
    """Before the weights are seen: those that may be in the window form are taken to be."""

    def is_window(weight: Weight) -> bool:
        return may_be_window(program, weight, request.weights)

    table = store.read(request.cache_dir, device.name)
    return ProductPlan(program=program, is_window=is_window, table=table, gemm=request.gemm)


def _memory_plan(
    program: Program,
    request: SettledRequest,
    expected: ProductPlan,
    *,
    free_bytes: int,
    weights_bytes: int,
) -> MemoryPlan:
    return plan_memory(
        program,
        request,
        free_bytes=free_bytes,
        weights_bytes=weights_bytes,
        staging_bytes=staging_bytes(program, request.weights),
        sizes_of=lambda limits: sizes_of(program, limits, expected),
    )


def _compile_early(
    program: Program,
    request: SettledRequest,
    memory: MemoryPlan,
    plan: ProductPlan,
    device: Device,
    progress: ProgressCallback,
) -> int:
    """Compile what packing and the real launches will need, made from weights and memory that are not
    there."""
    sizes = sizes_of(program, memory.limits, plan)
    work = lower_all(
        program,
        limits=memory.limits,
        memory=StepMemory.allocate(sizes, CountingDevice()),
        weights=stand_ins(plan),
        plan=plan,
        device=device,
        overlap=OVERLAP,
    )
    progress("compile", 0, 1, "unit")
    began_s = time.monotonic()
    packing = work_ahead(placements(program, request.weights))
    kernels = compile_all(chain(packing, *work.values()), threads=max(1, (os.cpu_count() or 2) // 2))
    progress("compile", 1, 1, "unit")
    log.info("%d kernels compiled or found in %.2f s", kernels, time.monotonic() - began_s)
    return kernels


def _report(memory: MemoryPlan, used_bytes: int, executor: CudaExecutor) -> None:
    """What was planned beside what the device says that it took."""
    planned = memory.weights + memory.step + memory.kv
    log.info("device memory planned: %s", memory)
    log.info(
        "device memory used: %.2f GiB, %.2f GiB planned and %.2f GiB for graphs and kernels; %d KV blocks",
        used_bytes / GIB,
        planned / GIB,
        (used_bytes - planned) / GIB,
        executor.limits.num_blocks,
    )
