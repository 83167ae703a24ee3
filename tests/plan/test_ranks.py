"""Memory of ranks beside what the backends allocate, and room for sequences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from firelane.backends.cpu import loader
from firelane.backends.cpu.codegen.layout import Layout as CpuLayout
from firelane.contract.limits import StepLimits
from firelane.models.registry import load_program
from firelane.plan.devices import find_kernels
from firelane.plan.estimate import GIB, PlanWorkload, estimate
from firelane.plan.forms import WeightForm
from firelane.plan.layout import ParallelLayout
from firelane.plan.model import PlannedModel
from firelane.plan.ranks import PlanSizes, room
from firelane.plan.steps import make_stages
from firelane.program.cache import group_layers
from tests.models import toy_latent, toy_recurrent
from tests.models.test_published_sizes import gpt_oss
from tests.plan.published import LLAMA_8B, SCOUT, setup
from tests.plan.test_estimate import clock_of

GEMMA3 = {
    "architectures": ["Gemma3ForCausalLM"],
    "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size": 1152,
    "intermediate_size": 6912,
    "max_position_embeddings": 32768,
    "model_type": "gemma3_text",
    "num_attention_heads": 4,
    "num_hidden_layers": 26,
    "num_key_value_heads": 1,
    "query_pre_attn_scalar": 256,
    "rms_norm_eps": 1e-06,
    "rope_local_base_freq": 10000.0,
    "rope_theta": 1000000.0,
    "sliding_window": 512,
    "sliding_window_pattern": 6,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "vocab_size": 262144,
}
SIZES = PlanSizes(max_num_seqs=256, step_tokens=512, block_size=16, max_model_len=8192)


def limits(program: Any, sizes: PlanSizes) -> StepLimits:
    return StepLimits(
        max_num_seqs=sizes.max_num_seqs,
        max_num_batched_tokens=sizes.step_tokens,
        max_output_rows=sizes.output_rows,
        max_model_len=sizes.max_model_len,
        block_size=sizes.block_size,
        num_blocks=1,
        spans=program.spans,
        state_bytes=program.state_bytes,
    )


@pytest.mark.parametrize(
    "config", [LLAMA_8B, GEMMA3, gpt_oss(24, 32)], ids=["Llama 8B", "Gemma 3", "gpt-oss-20b"]
)
def test_activations_are_what_the_cpu_places(config: dict[str, Any]) -> None:
    found = setup(config, "ryzen-7950x")
    (stage,) = make_stages(clock_of(found, ParallelLayout()))
    program = found.model.program
    placed = CpuLayout(program=program, limits=limits(program, SIZES), isa="avx512bf16").placement.nbytes
    assert stage.activation_bytes(SIZES, late=False) == pytest.approx(placed, rel=0.12)


@pytest.mark.parametrize(
    "config", [LLAMA_8B, GEMMA3, gpt_oss(24, 32)], ids=["Llama 8B", "Gemma 3", "gpt-oss-20b"]
)
def test_activations_are_what_cuda_places(config: dict[str, Any]) -> None:
    """But for gaps between the places."""
    step_memory = pytest.importorskip("firelane.backends.cuda.lowering.step_memory")
    found = setup(config, "h100")
    (stage,) = make_stages(clock_of(found, ParallelLayout()))
    sizes = replace(SIZES, step_tokens=2048, block_size=64)
    step = step_memory.Sizes(
        program=found.model.program,
        limits=limits(found.model.program, sizes),
        scratch=step_memory.ScratchSizes(),
    )
    placed = step_memory.placement_of(step).nbytes
    assert stage.activation_bytes(sizes, late=True) <= placed * 1.001
    assert placed <= stage.activation_bytes(sizes, late=True) * 1.25


def test_limits_are_those_of_the_backends() -> None:
    cpu = find_kernels("avx512bf16")
    assert (cpu.step_tokens, cpu.block_size) == (
        loader.DEFAULTS.max_num_batched_tokens,
        loader.DEFAULTS.block_size,
    )
    assert cpu.kv_part == loader.KV_SHARE
    cuda = pytest.importorskip("firelane.backends.cuda.loader")
    gpu = find_kernels("cuda")
    assert (gpu.step_tokens, gpu.block_size) == (
        cuda.DEFAULTS.max_num_batched_tokens,
        cuda.DEFAULTS.block_size,
    )
    memory = pytest.importorskip("firelane.backends.cuda.lowering.memory")
    assert gpu.reserve_mib == memory.RESERVE_BYTES / (1 << 20)


@pytest.mark.parametrize("tp", [1, 2])
def test_activations_are_cut_but_for_the_stream(tp: int) -> None:
    found = setup(LLAMA_8B, "h100")
    (whole,) = make_stages(clock_of(found, ParallelLayout()))
    (stage,) = make_stages(clock_of(found, ParallelLayout(tp=tp)))
    large = replace(SIZES, max_num_seqs=1, step_tokens=8192)
    share = stage.activation_bytes(large, late=True) / whole.activation_bytes(large, late=True)
    assert (share == 1) is (tp == 1)
    assert 1 / tp < share + 0.01


def test_pages_of_one_rank_are_those_of_the_program() -> None:
    program = load_program(SCOUT)
    (stage,) = make_stages(clock_of(setup(SCOUT, "h200", "bf16"), ParallelLayout()))
    groups = group_layers(program.cache_layers)
    assert [len(g.layers) for g in stage.cache_groups] == [len(g.layers) for g in groups]
    assert stage.page_token_bytes == program.kv_bytes_per_token
    (half,) = make_stages(clock_of(setup(SCOUT, "h200", "bf16"), ParallelLayout(tp=2)))
    assert half.page_token_bytes * 2 == program.kv_bytes_per_token
    assert [g.span for g in half.cache_groups] == [g.span for g in stage.cache_groups]


def test_states_of_sequences_take_room() -> None:
    program = load_program(toy_recurrent.qwen3_next())
    model = PlannedModel(program=program, form=WeightForm("bf16", {}))
    found = replace(setup(LLAMA_8B, "h100"), model=model, kv_bytes=GIB)
    (stage,) = make_stages(clock_of(found, ParallelLayout()))
    assert stage.state_bytes == sum(layer.nbytes for layer in program.state_layers)
    tokens = program.max_model_len
    filled = estimate(found, ParallelLayout(), PlanWorkload(context=tokens)).room
    each = stage.state_bytes + tokens * program.kv_bytes_per_token
    assert filled.sequences == pytest.approx(GIB / each, rel=0.05)


def test_no_room_is_zero() -> None:
    (stage,) = make_stages(clock_of(setup(LLAMA_8B, "h100"), ParallelLayout()))
    for budget in (-1.0, 0.0, 1000.0):
        found = room([stage], [budget], SIZES, 100)
        assert (found.one, found.many, found.sequences) == (0, 0, 0)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "fp8"])
@pytest.mark.parametrize("tp", [1, 2])
def test_keys_in_eight_bits(dtype: str, tp: int) -> None:
    """A rank's pages have the engine's bytes for each of its heads."""
    found = setup(LLAMA_8B, "h100", "bf16", dtype)
    (stage,) = make_stages(clock_of(found, ParallelLayout(tp=tp)))
    assert stage.page_token_bytes * tp == found.model.program.kv_bytes_per_token
    plain = load_program(LLAMA_8B).kv_bytes_per_token
    assert stage.page_token_bytes * tp == pytest.approx(plain if dtype == "bf16" else plain / 2, rel=0.04)


def test_a_latent_is_not_cut() -> None:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4}
    program = load_program(toy_latent.deepseek_v3() | heads)
    model = PlannedModel(program=program, form=WeightForm("bf16", {}))
    found = replace(setup(LLAMA_8B, "h100"), model=model)
    (stage,) = make_stages(clock_of(found, ParallelLayout(tp=2)))
    assert stage.page_token_bytes == program.kv_bytes_per_token
