"""Configs as they are published: the parameters that the models' cards name, and the cache groups that their
layers make."""

from __future__ import annotations

from math import prod

import pytest

from firelane.contract.span import CAUSAL, Chunk, Window
from firelane.models.registry import load_program
from firelane.program.program import Program
from tests.models.toy_config import Config

LLAMA4 = {
    "attention_bias": False,
    "attention_chunk_size": 8192,
    "attn_scale": 0.1,
    "attn_temperature_tuning": 4,
    "floor_scale": 8192,
    "for_llm_compressor": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "max_position_embeddings": 10485760,
    "model_type": "llama4_text",
    "num_attention_heads": 40,
    "num_experts_per_tok": 1,
    "num_hidden_layers": 48,
    "num_key_value_heads": 8,
    "output_router_logits": False,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "router_aux_loss_coef": 0.001,
    "router_jitter_noise": 0.0,
    "torch_dtype": "bfloat16",
    "vocab_size": 202048,
}
SCOUT = LLAMA4 | {
    "interleave_moe_layer_step": 1,
    "no_rope_layers": [1, 1, 1, 0] * 12,
    "num_local_experts": 16,
    "rope_scaling": {
        "factor": 16.0,
        "high_freq_factor": 1.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "use_qk_norm": True,
}
MAVERICK = LLAMA4 | {
    "interleave_moe_layer_step": 2,
    "no_rope_layers": [],
    "num_local_experts": 128,
    "rope_scaling": None,
    "use_qk_norm": False,
}


def multimodal(text: Config) -> Config:
    tokens = {"boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092}
    architecture = {"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4"}
    return architecture | tokens | {"text_config": text, "vision_config": {"hidden_size": 1408}}


def gpt_oss(layers: int, experts: int) -> Config:
    return {
        "architectures": ["GptOssForCausalLM"],
        "attention_bias": True,
        "experts_per_token": 4,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_size": 2880,
        "initial_context_length": 4096,
        "intermediate_size": 2880,
        "layer_types": ["sliding_attention", "full_attention"] * (layers // 2),
        "max_position_embeddings": 131072,
        "model_type": "gpt_oss",
        "num_attention_heads": 64,
        "num_experts_per_tok": 4,
        "num_hidden_layers": layers,
        "num_key_value_heads": 8,
        "num_local_experts": experts,
        "output_router_logits": False,
        "rms_norm_eps": 1e-05,
        "rope_scaling": {
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "factor": 32.0,
            "original_max_position_embeddings": 4096,
            "rope_type": "yarn",
            "truncate": False,
        },
        "rope_theta": 150000,
        "router_aux_loss_coef": 0.9,
        "sliding_window": 128,
        "swiglu_limit": 7.0,
        "torch_dtype": "bfloat16",
        "vocab_size": 201088,
    }


def parameters(program: Program) -> float:
    """In billions."""
    return sum(prod(weight.shape) for weight in program.weights) / 1e9


@pytest.mark.parametrize(
    ("config", "billions"),
    [
        (multimodal(SCOUT), 107.77),
        (multimodal(MAVERICK), 400.71),
        (gpt_oss(36, 128), 116.83),
        (gpt_oss(24, 32), 20.91),
    ],
    ids=["Scout", "Maverick", "gpt-oss-120b", "gpt-oss-20b"],
)
def test_parameters(config: Config, billions: float) -> None:
    assert parameters(load_program(config)) == pytest.approx(billions, abs=0.006)


def test_cache_groups() -> None:
    scout, oss = load_program(multimodal(SCOUT)), load_program(gpt_oss(36, 128))
    assert sorted(map(str, scout.spans)) == sorted(map(str, (CAUSAL, *[Chunk(8192)] * 3)))
    assert scout.kv_bytes_per_token == 48 << 10
    assert set(oss.spans) == {CAUSAL, Window(128)}
    assert oss.kv_bytes_per_token == 36 << 10
