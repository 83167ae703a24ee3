"""Configs of toy models of the families of experts."""

from __future__ import annotations

from tests.models.toy_config import MAX_LEN, WINDOW, Config, base
from tests.models.toy_dense import CYCLE, gemma4, llama3

EXPERTS = 6


def _experts(architecture: str, model_type: str, count: str = "num_experts") -> Config:
    """Six experts of which each token uses two."""
    return base(architecture, model_type) | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        count: EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 44,
        "router_aux_loss_coef": 0.001,
        "rope_theta": 10000.0,
    }


def mixtral() -> Config:
    """Experts in every layer, and a window."""
    config = _experts("MixtralForCausalLM", "mixtral", count="num_local_experts")
    del config["moe_intermediate_size"]
    return config | {"intermediate_size": 44, "sliding_window": WINDOW}


def qwen2_moe() -> Config:
    """A dense layer, and shares that are not normalised beside a shared expert with a gate."""
    config = _experts("Qwen2MoeForCausalLM", "qwen2_moe")
    del config["head_dim"]
    return config | {
        "num_attention_heads": 5,
        "num_key_value_heads": 1,
        "shared_expert_intermediate_size": 52,
        "norm_topk_prob": False,
        "mlp_only_layers": [0],
        "use_sliding_window": False,
    }


def qwen3_moe() -> Config:
    """Normalised shares, experts in each second layer."""
    return _experts("Qwen3MoeForCausalLM", "qwen3_moe") | {
        "norm_topk_prob": True,
        "decoder_sparse_step": 2,
        "num_hidden_layers": 4,
        "use_sliding_window": False,
        "sliding_window": None,
    }


def glm4_moe() -> Config:
    """A dense layer first, groups of experts, a shared one, half of each head rotated."""
    return _experts("Glm4MoeForCausalLM", "glm4_moe", count="n_routed_experts") | {
        "attention_bias": True,
        "first_k_dense_replace": 1,
        "n_shared_experts": 2,
        "n_group": 3,
        "topk_group": 2,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 0,
    }


def minimax_m2() -> Config:
    """Sigmoids and a bias, norms of all heads of a row, a quarter of each head rotated."""
    config = _experts("MiniMaxM2ForCausalLM", "minimax_m2", count="num_local_experts")
    del config["moe_intermediate_size"]
    return config | {"intermediate_size": 44, "rotary_dim": 8}


def ernie4_5_moe() -> Config:
    """Neighbours are rotated; softmax scores with a bias, two shared experts, a dense layer first."""
    config = _experts("Ernie4_5_MoeForCausalLM", "ernie4_5_moe", count="moe_num_experts")
    config |= {"moe_k": config.pop("num_experts_per_tok"), "num_attention_heads": 5, "num_key_value_heads": 1}
    config.pop("head_dim")
    return config | {
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "moe_layer_interval": 1,
        "use_bias": False,
        "tie_word_embeddings": True,
    }


def gpt_oss() -> Config:
    """Biases everywhere, alternating columns, sinks, a window in every other layer, yarn without rounding,
    and a gate whose limit is reached."""
    config = _experts("GptOssForCausalLM", "gpt_oss", count="num_local_experts")
    del config["moe_intermediate_size"], config["rope_theta"]
    yarn = {
        "rope_type": "yarn",
        "rope_theta": 150000.0,
        "factor": 8.0,
        "original_max_position_embeddings": MAX_LEN // 8,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
    }
    return config | {
        "intermediate_size": 44,
        "sliding_window": WINDOW,
        "layer_types": CYCLE,
        "rope_parameters": yarn,
        "attention_bias": True,
        "swiglu_limit": 0.8,
    }


def llama4() -> Config:
    """Chunks with positions of neighbours and bare norms of heads, full layers without positions; a dense
    layer, and one expert a token beside a shared one."""
    config = _experts("Llama4ForCausalLM", "llama4_text", count="num_local_experts")
    del config["moe_intermediate_size"], config["rope_theta"]
    return config | {
        "num_hidden_layers": 3,
        "num_experts_per_tok": 1,
        "intermediate_size": 44,
        "intermediate_size_mlp": 52,
        "interleave_moe_layer_step": 1,
        "moe_layers": [1, 2],
        "attention_chunk_size": WINDOW,
        "no_rope_layers": [1, 0, 1],
        "use_qk_norm": True,
        "attn_temperature_tuning": True,
        "attn_scale": 0.3,
        "floor_scale": 16,
        "rope_parameters": llama3()["rope_parameters"],
    }


def llama4_maverick() -> Config:
    """Heads without norms, experts in every other layer, no temperature."""
    config = llama4() | {
        "num_hidden_layers": 2,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
        "attn_temperature_tuning": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "no_rope_layer_interval": 2,
    }
    del config["moe_layers"], config["no_rope_layers"]
    return config


def gemma4_moe() -> Config:
    """A dense block and experts side by side in each layer."""
    return gemma4() | {
        "enable_moe_block": True,
        "num_experts": EXPERTS,
        "top_k_experts": 2,
        "moe_intermediate_size": 44,
    }


def hy3() -> Config:
    """Sigmoids and a bias, two shared experts, a dense layer first, norms of heads."""
    return _experts("HYV3ForCausalLM", "hy_v3") | {
        "num_shared_experts": 2,
        "router_scaling_factor": 2.5,
        "enable_moe_fp32_combine": True,
        "mlp_layer_types": ["dense", "sparse"],
    }


def mimo_v2_flash() -> Config:
    """Layers with a window have two key heads to one of full ones, and sinks; a third of each head turns."""
    pattern = [0, 1, 1]
    config = _experts("MiMoV2FlashForCausalLM", "mimo_v2_flash", count="n_routed_experts")
    ropes = {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.334}
        for kind, theta in (("full_attention", 5e5), ("sliding_attention", 1e4))
    }
    config.pop("rope_theta", None)
    config.pop("rms_norm_eps")
    return config | {
        "num_hidden_layers": len(pattern),
        "num_attention_heads": 6,
        "num_key_value_heads": 1,
        "swa_num_key_value_heads": 2,
        "head_dim": 48,
        "v_head_dim": 32,
        "hybrid_layer_pattern": pattern,
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in pattern],
        "moe_layer_freq": [0, 1, 1],
        "sliding_window_size": WINDOW - 1,
        "layernorm_epsilon": 1e-5,
        "rope_parameters": ropes,
        "moe_intermediate_size": 44,
        "routed_scaling_factor": None,
        "n_shared_experts": None,
        "attention_value_scale": 0.707,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "add_swa_attention_sink_bias": True,
        "add_full_attention_sink_bias": False,
    }
