"""Configs as they are published, and plans for them."""

from __future__ import annotations

from pathlib import Path

from firelane.models.registry import load_program
from firelane.plan.devices import find_devices
from firelane.plan.estimate import PlanSetup
from firelane.plan.forms import choose_form
from firelane.plan.model import PlannedModel
from firelane.program.cache_rewrite import with_cache_dtype
from tests.models.test_published_sizes import SCOUT as SCOUT_TEXT
from tests.models.test_published_sizes import gpt_oss, multimodal
from tests.models.toy_config import Config

NOWHERE = Path("/no/such/directory")
SCOUT = multimodal(SCOUT_TEXT)
GPT_OSS_20B = gpt_oss(24, 32) | {
    "quantization_config": {
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
        "quant_method": "mxfp4",
    }
}
LLAMA_8B: Config = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
KIMI_K25_TEXT: Config = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "attention_bias": False,
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 262144,
    "moe_intermediate_size": 2048,
    "moe_layer_freq": 1,
    "n_group": 1,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "norm_topk_prob": True,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "rms_norm_eps": 1e-05,
    "rope_scaling": {
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "factor": 64.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
        "type": "yarn",
    },
    "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827,
    "scoring_func": "sigmoid",
    "tie_word_embeddings": False,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
    "v_head_dim": 128,
    "vocab_size": 163840,
    "quantization_config": {
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": {
                    "group_size": 32,
                    "num_bits": 4,
                    "strategy": "group",
                    "symmetric": True,
                    "type": "int",
                },
            }
        },
        "format": "pack-quantized",
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|gate_up|down)_proj.*",
        ],
        "quant_method": "compressed-tensors",
    },
}


def model_of(config: Config, weights: str = "auto", kv_dtype: str = "auto") -> PlannedModel:
    program = with_cache_dtype(load_program(config), kv_dtype)
    return PlannedModel(
        program=program, form=choose_form(program, weights, NOWHERE, config), kv_dtype=kv_dtype
    )


def setup(
    config: Config, device: str, weights: str = "auto", kv_dtype: str = "auto", **more: int
) -> PlanSetup:
    return PlanSetup(
        model=model_of(config, weights, kv_dtype), device=find_devices(device, NOWHERE)[0], **more
    )
