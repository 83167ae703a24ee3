"""The launches of steps of a small program, lowered from weights and memory that are not there."""

from __future__ import annotations

from firelane.backends.contract import StepLimits
from firelane.backends.cuda.assembly import OVERLAP, lower_all, sizes_of
from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.memory import CountingDevice
from firelane.backends.cuda.product_plan import ProductPlan
from firelane.backends.cuda.stand_ins import stand_ins
from firelane.backends.cuda.step_memory import StepMemory
from firelane.models.dense import DenseSpec, dense_program
from firelane.program.ops import HeadShape, Rotary
from firelane.program.values import DType

SPEC = DenseSpec(
    name="small",
    vocab_size=200,
    max_model_len=1024,
    hidden_size=128,
    mlp_size=256,
    heads=HeadShape(heads=4, kv_heads=2, head_dim=32),
    rotary=Rotary(inverse_frequencies=(1.0,) * 16),
    windows=(0, 0),
    norm_eps=1e-5,
    dtype=DType.BF16,
)
LIMITS = StepLimits(
    max_num_seqs=16,
    max_num_batched_tokens=1024,
    max_output_rows=24,
    max_model_len=1024,
    block_size=64,
    num_blocks=256,
)


def launches(*, gemm: str = "invariant", window: bool = False, overlap: bool = OVERLAP) -> list[Launch]:
    """Of all buckets; what a library does is left out. window: the form of all weights."""
    program, device = dense_program(SPEC), CountingDevice()
    plan = ProductPlan(program=program, is_window=lambda _: window, gemm=gemm)
    work = lower_all(
        program,
        limits=LIMITS,
        memory=StepMemory.allocate(sizes_of(program, LIMITS, plan), device),
        weights=stand_ins(plan),
        plan=plan,
        device=device,
        overlap=overlap,
    )
    return [launch for every in work.values() for launch in every if isinstance(launch, Launch)]
