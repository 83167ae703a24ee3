"""From weights on a device to an executor: the step's memory, then the launches of every bucket, compiled in
threads and captured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from torch import Tensor

from firelane.backends.contract import StepLimits
from firelane.backends.cuda.buckets import Bucket, make_buckets
from firelane.backends.cuda.config import MeasuredTable
from firelane.backends.cuda.device import Device
from firelane.backends.cuda.executor import Captured, CudaExecutor
from firelane.backends.cuda.faults import translated
from firelane.backends.cuda.launch import Launch, Work
from firelane.backends.cuda.lowering import Lowering
from firelane.backends.cuda.matrices import WindowMatrix
from firelane.backends.cuda.product_plan import ProductPlan
from firelane.backends.cuda.step_memory import Sizes, StepMemory
from firelane.backends.cuda.weights import DeviceWeights
from firelane.program.program import Program
from firelane.program.values import Weight

OVERLAP = False
"""Whether the kernels of a step overlap (kernels/overlap.py). Not yet: it has never run on a device. It may
be turned on when benchmarks/cuda_steps.py --overlap says that it pays and tests/gpu that no bit changes; and
only for devices of compute capability 9.0 or more, as for no other it compiles."""


def sizes_of(program: Program, limits: StepLimits, plan: ProductPlan) -> Sizes:
    return Sizes(program=program, limits=limits, scratch=plan.scratch(make_buckets(limits)))


def product_plan(
    program: Program, weights: DeviceWeights, table: MeasuredTable | None, gemm: str
) -> ProductPlan:
    def is_window(weight: Weight) -> bool:
        return isinstance(weights.matrix(weight.name), WindowMatrix)

    return ProductPlan(program=program, is_window=is_window, table=table, gemm=gemm)


def lower_all(
    program: Program,
    *,
    limits: StepLimits,
    memory: StepMemory,
    weights: DeviceWeights,
    plan: ProductPlan,
    device: Device,
    overlap: bool = OVERLAP,
) -> dict[Bucket, list[Work]]:
    """The launches of every bucket."""
    tile_tokens = Sizes(program=program, limits=limits, scratch=plan.scratch(())).tile_tokens
    work = {
        bucket: Lowering(
            program=program,
            bucket=bucket,
            memory=memory,
            weights=weights,
            products=plan,
            num_sms=device.num_sms,
            tile_tokens=tile_tokens,
        ).launches()
        for bucket in make_buckets(limits)
    }
    return {bucket: _overlapping(works) for bucket, works in work.items()} if overlap else work


def _overlapping(work: Iterable[Work]) -> list[Work]:
    return [replace(w, overlap=True) if isinstance(w, Launch) else w for w in work]


def compile_all(work: Iterable[Work], *, threads: int) -> int:
    """Compile every kernel that `work` launches, or find it compiled. Returns how many there are. Raises
    CompilerError."""
    different = {specialisation(w): w for w in work}
    with ThreadPoolExecutor(threads, thread_name_prefix="compile") as pool:
        list(pool.map(_compile, different.values()))
    return len(different)


def _compile(work: Work) -> None:
    with translated(f"compiling {work.name}", kernel=work.name):
        work.compile()


def specialisation(work: Work) -> tuple[Any, ...]:
    """What a compiled kernel depends on: launches that agree in it share one."""
    arguments: Mapping[str, Any] = getattr(work, "arguments", {})
    fixed = tuple((name, _kind(value)) for name, value in arguments.items())
    options = tuple(getattr(work, name, 0) for name in ("warps", "stages", "overlap"))
    return work.name, fixed, *options


def _kind(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % 16 == 0
    return value


def assemble(
    program: Program,
    *,
    limits: StepLimits,
    device: Device,
    weights: DeviceWeights,
    table: MeasuredTable | None = None,
    gemm: str = "invariant",
    captured: Captured = lambda _: None,
    overlap: bool = OVERLAP,
) -> CudaExecutor:
    """Places the step's memory on `device` and captures every bucket's graph. gemm: as in ExecutorRequest."""
    plan = product_plan(program, weights, table, gemm)
    sizes = sizes_of(program, limits, plan)
    memory = StepMemory.allocate(sizes, device)
    work = lower_all(
        program, limits=limits, memory=memory, weights=weights, plan=plan, device=device, overlap=overlap
    )
    return CudaExecutor(
        program=program,
        limits=limits,
        device=device,
        memory=memory,
        weights=weights,
        work=work,
        tile_tokens=sizes.tile_tokens,
        captured=captured,
    )
