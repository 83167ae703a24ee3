"""From weights on a device to an executor: the step's memory, then the launches of every bucket, compiled in
threads (compilation.py) and captured."""

from __future__ import annotations

from firelane.backends.cuda.device.device import WAIT_LIMIT_S, Device
from firelane.backends.cuda.device.linear_config import MeasuredTable
from firelane.backends.cuda.executor import Captured, CudaExecutor
from firelane.backends.cuda.lowering.buckets import Bucket, make_buckets
from firelane.backends.cuda.lowering.launches import lower_step
from firelane.backends.cuda.lowering.lowering import Lowering, StepWork
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.backends.cuda.lowering.step_memory import Sizes, StepMemory
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import PlainMatrix
from firelane.contract import SlotState, StepLimits
from firelane.program.program import Program
from firelane.program.values import Weight


def sizes_of(program: Program, limits: StepLimits, plan: ProductPlan) -> Sizes:
    return Sizes(program=program, limits=limits, scratch=plan.scratch(make_buckets(limits)))


def product_plan(
    program: Program, weights: DeviceWeights, table: MeasuredTable | None, gemm: str
) -> ProductPlan:
    def is_coded(weight: Weight) -> bool:
        return not isinstance(weights.matrix(weight.name), PlainMatrix)

    return ProductPlan(program=program, is_coded=is_coded, table=table, gemm=gemm)


def lower_all(
    program: Program,
    *,
    limits: StepLimits,
    memory: StepMemory,
    weights: DeviceWeights,
    plan: ProductPlan,
    device: Device,
) -> dict[Bucket, StepWork]:
    """The launches of every bucket."""
    tile_tokens = Sizes(program=program, limits=limits, scratch=plan.scratch(())).tile_tokens
    return {
        bucket: lower_step(
            Lowering(
                program=program,
                bucket=bucket,
                memory=memory,
                weights=weights,
                products=plan,
                num_sms=device.num_sms,
                tile_tokens=tile_tokens,
            )
        )
        for bucket in make_buckets(limits)
    }


def assemble(
    program: Program,
    *,
    limits: StepLimits,
    device: Device,
    weights: DeviceWeights,
    table: MeasuredTable | None = None,
    gemm: str = "invariant",
    captured: Captured = lambda _: None,
    step_limit_s: float = WAIT_LIMIT_S,
    state: SlotState | None = None,
) -> CudaExecutor:  # limits: exempt (what an executor is put together from)
    """Places the step's memory on `device` and captures every bucket's graph; to be called on its stream.
    gemm: as in ExecutorConfig. step_limit_s: after which a step is taken to hang. state: as
    StepMemory.allocate()'s."""
    plan = product_plan(program, weights, table, gemm)
    sizes = sizes_of(program, limits, plan)
    memory = StepMemory.allocate(sizes, device, state)
    work = lower_all(program, limits=limits, memory=memory, weights=weights, plan=plan, device=device)
    return CudaExecutor(
        program=program,
        limits=limits,
        device=device,
        memory=memory,
        weights=weights,
        work=work,
        tile_tokens=sizes.tile_tokens,
        captured=captured,
        step_limit_s=step_limit_s,
        is_alone=state is None,
    )
