"""Configs of toy models of families with recurrent layers."""

from __future__ import annotations

from tests.models.toy_config import MAX_LEN, Config, base
from tests.models.toy_experts import EXPERTS

ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}


def _next(architecture: str, model_type: str) -> Config:
    """Three layers with delta networks, two value heads for each key head, and one with attention."""
    return base(architecture, model_type) | {
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": dict(ROPE),
        "attention_bias": False,
    }


def _experts() -> Config:
    return {
        "num_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 44,
        "shared_expert_intermediate_size": 52,
        "norm_topk_prob": True,
    }


def qwen3_next() -> Config:
    """Projections by key head, experts in each second layer."""
    config = _next("Qwen3NextForCausalLM", "qwen3_next") | _experts()
    return config | {"decoder_sparse_step": 2, "mlp_only_layers": []}


def qwen3_5() -> Config:
    """Projections apart, attention in the second layer, positions on three axes."""
    config = _next("Qwen3_5ForCausalLM", "qwen3_5_text") | {"tie_word_embeddings": True}
    config["rope_parameters"] |= {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
    kinds = ["linear_attention", "full_attention", "linear_attention"]
    return config | {"num_hidden_layers": 3, "layer_types": kinds, "attn_output_gate": True}


def qwen3_5_moe() -> Config:
    """Experts in all layers, one value head for each key head."""
    config = _next("Qwen3_5MoeForCausalLM", "qwen3_5_moe_text") | _experts()
    del config["intermediate_size"], config["norm_topk_prob"]
    return config | {"linear_num_key_heads": 4, "full_attention_interval": 2}


def lfm2() -> Config:
    """Convolutions of three taps and attention, with the keys of published configs."""
    config = base("Lfm2ForCausalLM", "lfm2") | {
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "conv_L_cache": 3,
        "conv_bias": False,
        "full_attn_idxs": [1, 3],
        "block_auto_adjust_ff_dim": True,
        "block_ff_dim": 200,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }
    del config["rms_norm_eps"], config["hidden_act"]
    return config


def lfm2_moe() -> Config:
    """A dense layer first, then experts chosen with a bias; four taps."""
    config = lfm2() | _experts()
    config = {k: v for k, v in config.items() if not k.startswith(("full_attn", "shared", "block"))}
    return config | {
        "architectures": ["Lfm2MoeForCausalLM"],
        "model_type": "lfm2_moe",
        "conv_L_cache": 4,
        "layer_types": ["conv", "full_attention", "conv"],
        "num_hidden_layers": 3,
        "num_dense_layers": 1,
        "use_expert_bias": True,
        "routed_scaling_factor": 1.5,
    }


def kimi_linear() -> Config:
    """Delta rules by channel, and latent attention in the third layer; a dense layer, then experts."""
    config = base("KimiLinearForCausalLM", "kimi_linear") | {
        "num_hidden_layers": 4,
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "model_max_length": MAX_LEN,
        "q_lora_rank": None,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 16,
        "v_head_dim": 28,
        "mla_use_nope": True,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 44,
        "moe_renormalize": True,
        "moe_router_activation_func": "sigmoid",
        "num_experts": EXPERTS,
        "num_experts_per_token": 2,
        "num_expert_group": 1,
        "topk_group": 1,
        "num_shared_experts": 1,
        "routed_scaling_factor": 1.5,
        "rope_theta": 10000.0,
        "linear_attn_config": {
            "full_attn_layers": [3],
            "kda_layers": [1, 2, 4],
            "head_dim": 32,
            "num_heads": 3,
            "short_conv_kernel_size": 4,
        },
    }
    del config["max_position_embeddings"]
    return config


def granite_hybrid() -> Config:
    """State spaces and attention without positions, an MLP and experts in all layers, Granite's factors."""
    return base("GraniteMoeHybridForCausalLM", "granitemoehybrid") | {
        "num_hidden_layers": 3,
        "layer_types": ["mamba", "attention", "mamba"],
        "mamba_n_heads": 5,
        "mamba_d_head": 32,
        "mamba_d_state": 16,
        "mamba_n_groups": 1,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        "position_embedding_type": "nope",
        "shared_intermediate_size": 52,
        "intermediate_size": 44,
        "num_local_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "embedding_multiplier": 6.0,
        "residual_multiplier": 0.7,
        "attention_multiplier": 0.2,
        "logits_scaling": 1.5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }


def granite_hybrid_dense() -> Config:
    """No experts; two groups of heads, and positions."""
    config = granite_hybrid()
    del config["num_experts_per_tok"]
    return config | {
        "num_local_experts": 0,
        "mamba_n_heads": 10,
        "mamba_d_head": 16,
        "mamba_n_groups": 2,
        "position_embedding_type": "rope",
    }


def nemotron_h() -> Config:
    """All four kinds of layer: Mamba-2 with two groups, MLPs without a gate, experts of such behind a latent,
    attention without positions."""
    config = base("NemotronHForCausalLM", "nemotron_h")
    for key in ("rms_norm_eps", "hidden_act", "num_hidden_layers"):
        del config[key]
    return config | {
        "hybrid_override_pattern": "ME*-M",
        "layer_norm_epsilon": 1e-5,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "mamba_num_heads": 6,
        "mamba_head_dim": 16,
        "n_groups": 2,
        "ssm_state_size": 32,
        "conv_kernel": 4,
        "chunk_size": 32,
        "time_step_min": 0.0,
        "mlp_hidden_act": "relu2",
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 44,
        "moe_shared_expert_intermediate_size": 52,
        "moe_latent_size": 48,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 2.5,
        "norm_topk_prob": True,
    }


def nemotron_3() -> Config:
    """Experts as wide as the stream, in groups; layers named one by one."""
    kinds = ["linear_attention", "moe", "full_attention", "moe"]
    config = nemotron_h() | {"layers_block_type": kinds, "n_group": 3, "topk_group": 2}
    del config["moe_latent_size"], config["hybrid_override_pattern"]
    return config
