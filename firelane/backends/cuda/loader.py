"""Load a program on the GPU: the kernels compile while the weights are read; then the memory that is left is
given out, and every bucket's graph is captured."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from triton import knobs

from firelane.backends.background import in_background
from firelane.backends.cuda.assembly import assemble, lower_all, sizes_of
from firelane.backends.cuda.cuda_device import CudaDevice
from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.loading.loading import load_weights
from firelane.backends.cuda.loading.packing import work_ahead
from firelane.backends.cuda.lowering.buckets import Bucket, make_buckets
from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.backends.cuda.lowering.memory import GIB, CountingDevice, MemoryPlan, fixed_memory, plan_memory
from firelane.backends.cuda.lowering.placeholder_weights import placeholder_weights
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.backends.cuda.lowering.step_memory import Sizes, StepMemory
from firelane.backends.cuda.lowering.supported import check_supported
from firelane.backends.cuda.tuning import store
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.placement import may_be_coded, placements, planned_bytes, staging_bytes
from firelane.backends.cuda.weights.quantised_weights import Stored, stored_weights
from firelane.backends.ranks.member import Member, limits_of
from firelane.contract import KEY_TILE, BackendDefaults, ProgressCallback, SlotState, StepLimits
from firelane.engine_config import ExecutorConfig
from firelane.errors import CacheError
from firelane.program.program import Program
from firelane.program.values import Weight
from firelane.storage import cache_directory
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.fitting import fitted
from firelane.weights.quantizing.schemes import WHILE_PACKING

DEFAULTS = BackendDefaults(block_size=KEY_TILE, max_num_batched_tokens=2048)
READERS = 8
ALONE = Member(is_segmented=False)
log = logging.getLogger(__name__)


def load(
    program: Program, model_dir: Path, config: ExecutorConfig, progress: ProgressCallback
) -> CudaExecutor:
    """The executor of `program` with the weights of `model_dir`, on the GPU of this thread.

    Raises CacheError, CheckpointError, OutOfMemoryError, CompilerError, MachineError, UnsupportedModelError.
    """
    program, checkpoint = opened(program, model_dir, config)
    member = Member(is_segmented=config.gemm == "ranks")
    return load_on(CudaDevice(), program, checkpoint, config, progress, member)


def opened(program: Program, model_dir: Path, config: ExecutorConfig) -> tuple[Program, Checkpoint]:
    """The program as the checkpoint has its weights, and the checkpoint. Kernels are kept from now on where
    the config says. Raises CacheError, CheckpointError."""
    checkpoint = Checkpoint.open(model_dir)
    scheme = WHILE_PACKING.get(config.weights)
    program = fitted(program, checkpoint, rounds=config.rounds, quantize=scheme)
    kernels = config.cache_dir / "triton"
    try:
        cache_directory(kernels)
    except OSError as error:
        raise CacheError(
            f"{kernels}: {error.strerror}; set FIRELANE_CACHE_DIR to another directory"
        ) from error
    knobs.cache.dir = str(kernels)
    return program, checkpoint


def load_on(
    device: Device,
    program: Program,
    checkpoint: Checkpoint,
    config: ExecutorConfig,
    progress: ProgressCallback,
    member: Member = ALONE,
) -> CudaExecutor:
    """Load a program on a given device; program: of all members."""
    programs = member.programs(program)
    own, lanes = programs[member.rank], member.hosts.ranks.lanes
    check_supported(own)
    others = [programs[first] for first in range(0, member.rank, lanes) if first in programs]
    with device.on_stream():
        return _load_on(device, own, checkpoint, config, progress, member, others)


@dataclass(frozen=True, kw_only=True)
class Part:
    """A program that a rank runs, as far as it is known before its weights are read. stored: codes of the
    checkpoint, by weight. expected: of its products, those that may be in the coded form taken to be."""

    program: Program
    stored: Mapping[str, Stored]
    expected: ProductPlan

    @classmethod
    def of(cls, program: Program, checkpoint: Checkpoint, config: ExecutorConfig, device: Device) -> Part:
        stored = stored_weights(program, checkpoint, config.weights)
        return cls(program=program, stored=stored, expected=_expected_plan(program, config, stored, device))


def _load_on(
    device: Device,
    program: Program,
    checkpoint: Checkpoint,
    config: ExecutorConfig,
    progress: ProgressCallback,
    member: Member,
    others: Sequence[Program],
) -> CudaExecutor:
    """others: a program of each stage before this one, whose devices need as many pages."""
    before = device.free_bytes()
    parts = [Part.of(one, checkpoint, config, device) for one in (program, *others)]
    part, given = parts[0], member.limits and limits_of(program, member.limits)
    early = _early_plan(parts, config, free_bytes=before, given=given)
    state = member.join(early.limits, program.vocab_size)
    compiled = in_background(lambda: _compile_early(part, config, early, device, progress), name="compile")

    def watchful(stage: str, done: float, total: float, unit: str, /) -> None:
        """A kernel that does not compile ends the loading."""
        if compiled.done():
            compiled.result()
        progress(stage, done, total, unit)

    threads = config.threads or min(READERS, os.cpu_count() or 1)
    weights = load_weights(
        program,
        checkpoint,
        device,
        mode=config.weights,
        stored=part.stored,
        threads=threads,
        progress=watchful,
    )
    memory = _memory_plan(
        part,
        config,
        free_bytes=device.free_bytes() + weights.nbytes,
        weights_bytes=weights.nbytes,
        given=early.limits if state else None,
    )
    compiled.result()
    member.meet_loaded()
    executor = _assemble(device, memory, weights, part.expected, config.step_limit_s, progress, state)
    _report(memory, before - device.free_bytes(), executor)
    return executor


def _assemble(
    device: Device,
    memory: MemoryPlan,
    weights: DeviceWeights,
    expected: ProductPlan,
    step_limit_s: float,
    progress: ProgressCallback,
    state: SlotState | None,
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
        step_limit_s=step_limit_s,
        state=state,
    )


def _expected_plan(
    program: Program, config: ExecutorConfig, stored: Mapping[str, Stored], device: Device
) -> ProductPlan:
    """Before the weights are seen: those that may be in the coded form are taken to be."""

    def is_coded(weight: Weight) -> bool:
        return weight.name in stored or may_be_coded(program, weight, config.weights)

    table = store.read(config.cache_dir, device.name)
    return ProductPlan(program=program, is_coded=is_coded, table=table, gemm=config.gemm)


def _memory_plan(
    part: Part,
    config: ExecutorConfig,
    *,
    free_bytes: int,
    weights_bytes: int,
    given: StepLimits | None = None,
) -> MemoryPlan:
    """given: sizes that were found already."""

    def sizes(limits: StepLimits) -> Sizes:
        return sizes_of(part.program, limits, part.expected)

    if given is not None:
        return fixed_memory(
            part.program, given, free_bytes=free_bytes, weights_bytes=weights_bytes, sizes_of=sizes
        )
    return plan_memory(
        part.program,
        config,
        DEFAULTS,
        free_bytes=free_bytes,
        weights_bytes=weights_bytes,
        staging_bytes=staging_bytes(part.program, config.weights, part.stored),
        sizes_of=sizes,
    )


def _early_plan(
    parts: Sequence[Part], config: ExecutorConfig, *, free_bytes: int, given: StepLimits | None
) -> MemoryPlan:
    """The memory plan of the first part, before its weights are there. Where sizes are not given, the others
    have as many pages, on devices that are taken to be like this one."""

    def plan(part: Part, given: StepLimits | None = None) -> MemoryPlan:
        weights_bytes = planned_bytes(part.program, config.weights, part.stored)
        return _memory_plan(part, config, free_bytes=free_bytes, weights_bytes=weights_bytes, given=given)

    if given is not None:
        return plan(parts[0], given)
    plans = [plan(part) for part in parts]
    least = min(plans, key=lambda plan: plan.limits.num_blocks)
    if least is plans[0]:
        return least
    own = parts[0].program
    return plan(parts[0], replace(least.limits, spans=own.spans, state_bytes=own.state_bytes))


def _compile_early(
    part: Part,
    config: ExecutorConfig,
    memory: MemoryPlan,
    device: Device,
    progress: ProgressCallback,
) -> int:
    """Compile what packing and the real launches will need, made from weights and memory that are not
    there."""
    sizes = sizes_of(part.program, memory.limits, part.expected)
    work = lower_all(
        part.program,
        limits=memory.limits,
        memory=StepMemory.allocate(sizes, CountingDevice()),
        weights=placeholder_weights(part.expected, part.stored),
        plan=part.expected,
        device=device,
    )
    progress("compile", 0, 1, "unit")
    began_s = time.monotonic()
    packing = work_ahead(placements(part.program, config.weights, part.stored))
    threads = max(1, (os.cpu_count() or 2) // 2)
    kernels = compile_all(chain(packing, *work.values()), threads=threads, on_device=device.on_stream)
    progress("compile", 1, 1, "unit")
    log.debug("%d kernels compiled or found in %.2f s", kernels, time.monotonic() - began_s)
    return kernels


def _report(memory: MemoryPlan, used_bytes: int, executor: CudaExecutor) -> None:
    """Planned bytes beside those that the device says that it took."""
    planned = memory.weights + memory.step + memory.kv
    log.debug("device memory planned: %s", memory)
    log.debug(
        "device memory used: %.2f GiB, %.2f GiB planned and %.2f GiB for graphs and kernels; %d KV blocks",
        used_bytes / GIB,
        planned / GIB,
        (used_bytes - planned) / GIB,
        executor.limits.num_blocks,
    )
