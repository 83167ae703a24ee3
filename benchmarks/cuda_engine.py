"""An executor with random weights that were made on the device, built as the backend builds one."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import chain

from cuda_llama import random_weights

from firelane.backends.cuda.assembly import assemble, lower_all, product_plan, sizes_of
from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.linear_config import MeasuredTable
from firelane.backends.cuda.executor import CudaExecutor
from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.backends.cuda.lowering.memory import CountingDevice, step_bytes
from firelane.backends.cuda.lowering.step_memory import StepMemory
from firelane.contract import StepLimits
from firelane.program.program import Program

THREADS = os.cpu_count() or 1


@dataclass(frozen=True, kw_only=True)
class Built:
    """planned_bytes: of the device, for weights, buffers and KV cache."""

    executor: CudaExecutor
    planned_bytes: int


def random_executor(
    program: Program,
    limits: StepLimits,
    device: Device,
    *,
    mode: str,
    gemm: str = "invariant",
    tuned: MeasuredTable | None = None,
) -> Built:
    """mode, gemm: as ExecutorConfig.weights and .gemm; tuned: as store.read() gives it. All kernels are
    compiled before the first one is captured, in threads."""
    weights = random_weights(program, device, mode=mode)
    plan = product_plan(program, weights, tuned, gemm)
    sizes = sizes_of(program, limits, plan)
    memory = StepMemory.allocate(sizes, CountingDevice())
    work = lower_all(program, limits=limits, memory=memory, weights=weights, plan=plan, device=device)
    compile_all(chain.from_iterable(work.values()), threads=THREADS)
    executor = assemble(program, limits=limits, device=device, weights=weights, table=tuned, gemm=gemm)
    return Built(executor=executor, planned_bytes=weights.nbytes + step_bytes(sizes))
