"""Every kernel that steps of Llama 3.1 8B launch, in all buckets, as the lowering makes them."""

from __future__ import annotations

from collections.abc import Iterator

from firelane.backends.cuda.assembly import lower_all, sizes_of
from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.lowering.compilation import specialisation
from firelane.backends.cuda.lowering.memory import CountingDevice
from firelane.backends.cuda.lowering.placeholder_weights import placeholder_weights
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.backends.cuda.lowering.step_memory import StepMemory
from firelane.contract import StepLimits
from firelane.program.ops import HeadShape, Rotary
from firelane.program.program import Program
from firelane.program.values import DType
from tests.backends.cuda.compile_driver import Case
from tests.models.dense import DenseSpec, dense_program

LIMITS = StepLimits(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_output_rows=288,
    max_model_len=8192,
    block_size=64,
    num_blocks=8000,
)


class H200(CountingDevice):
    num_sms = 132


def cases() -> Iterator[Case]:
    seen: set[object] = set()
    for form in ("plain", "coded"):
        for bucket, launches in _work(form == "coded"):
            for launch in launches:
                kind = specialisation(launch)
                if kind not in seen and isinstance(launch, Launch):
                    seen.add(kind)
                    yield Case(name=f"{form}, {bucket}, {len(seen)}: {launch.name}", launch=launch)


def _work(coded: bool):
    program = llama_8b()
    plan = ProductPlan(program=program, is_coded=lambda weight: coded and len(weight.shape) == 2)
    device = H200()
    return lower_all(
        program,
        limits=LIMITS,
        memory=StepMemory.allocate(sizes_of(program, LIMITS, plan), device),
        weights=placeholder_weights(plan),
        plan=plan,
        device=device,
    ).items()


def llama_8b() -> Program:
    """One layer of it: the others launch the same kernels."""
    spec = DenseSpec(
        name="llama-8b",
        vocab_size=128256,
        max_model_len=LIMITS.max_model_len,
        hidden_size=4096,
        mlp_size=14336,
        heads=HeadShape(heads=32, kv_heads=8, head_dim=128),
        rotary=Rotary(inverse_frequencies=(1.0,) * 64),
        windows=(0,),
        norm_eps=1e-5,
        dtype=DType.BF16,
    )
    return dense_program(spec)
