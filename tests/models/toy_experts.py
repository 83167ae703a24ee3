"""Configs of toy models of the families of experts."""

from __future__ import annotations

from tests.models.toy_config import WINDOW, Config, base

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
