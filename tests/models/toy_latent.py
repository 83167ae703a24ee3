"""Configs of toy models of the families with latent attention."""

from __future__ import annotations

from tests.models.toy_config import MAX_LEN, Config, base
from tests.models.toy_experts import EXPERTS

YARN = {
    "type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": MAX_LEN // 4,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}


def _latent(architecture: str, model_type: str) -> Config:
    """Latents of 32 numbers beside 16 for the position; a dense layer, then two with experts."""
    return base(architecture, model_type) | {
        "num_attention_heads": 5,
        "num_key_value_heads": 5,
        "num_hidden_layers": 3,
        "q_lora_rank": 44,
        "kv_lora_rank": 32,
        "qk_nope_head_dim": 20,
        "qk_rope_head_dim": 16,
        "v_head_dim": 28,
        "n_routed_experts": EXPERTS,
        "num_experts_per_tok": 2,
        "n_shared_experts": 2,
        "moe_intermediate_size": 44,
        "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.5,
        "rope_theta": 10000.0,
        "attention_bias": False,
    }


def deepseek_v2() -> Config:
    """Groups as good as their best expert, and both factors of yarn."""
    return _latent("DeepseekV2ForCausalLM", "deepseek_v2") | {
        "topk_method": "group_limited_greedy",
        "n_group": 3,
        "topk_group": 2,
        "norm_topk_prob": False,
        "num_hidden_layers": 2,
        "scoring_func": "softmax",
        "moe_layer_freq": 1,
        "aux_loss_alpha": 0.001,
        "seq_aux": True,
        "ep_size": 1,
        "rope_scaling": YARN | {"mscale": 0.707, "mscale_all_dim": 1.3},
    }


def deepseek_v2_lite() -> Config:
    """Queries made of the stream itself, no groups, nothing stretched."""
    return _latent("DeepseekV2ForCausalLM", "deepseek_v2") | {
        "q_lora_rank": None,
        "topk_method": "greedy",
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": False,
    }


def deepseek_v3() -> Config:
    """Sigmoids, a bias that chooses, groups as good as their two best, yarn; a layer behind the last one."""
    return _latent("DeepseekV3ForCausalLM", "deepseek_v3") | {
        "n_group": 3,
        "topk_group": 2,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 1,
        "rope_scaling": YARN,
    }


def kimi_k2() -> Config:
    """DeepSeek V3 without groups; a yarn whose blend has no width; norms with another eps."""
    return _latent("DeepseekV3ForCausalLM", "deepseek_v3") | {
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "scoring_func": "sigmoid",
        "topk_method": "noaux_tc",
        "num_nextn_predict_layers": 0,
        "rms_norm_eps": 1e-3,
        "rope_scaling": YARN | {"beta_fast": 1.0},
    }


def mistral4() -> Config:
    """Scores of a softmax in groups, and queries whose temperature grows."""
    config = _latent("Mistral4ForCausalLM", "mistral4")
    theta = config.pop("rope_theta")
    return config | {
        "routed_scaling_factor": 1.0,
        "n_group": 2,
        "num_hidden_layers": 2,
        "topk_group": 1,
        "norm_topk_prob": True,
        "rope_parameters": YARN
        | {
            "rope_theta": theta,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
            "max_position_embeddings": MAX_LEN,
            "llama_4_scaling_beta": 0.2,
            "partial_rotary_factor": 16 / 36,
        },
    }


def glm4_moe_lite() -> Config:
    """Which layers have experts is said for each; pairs of each head as kernels rotate them."""
    config = _latent("Glm4MoeLiteForCausalLM", "glm4_moe_lite")
    del config["first_k_dense_replace"]
    return config | {
        "mlp_layer_types": ["sparse", "dense", "sparse"],
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "rope_interleave": False,
        "partial_rotary_factor": 1.0,
        "num_nextn_predict_layers": 1,
    }


INDEX_TOPK = 20
"""Positions that toys with an indexer read: far fewer than prompts have."""
INDEX_HEADS = 16
"""With few heads many positions would have no score: equals, of which transformers takes any."""


def deepseek_v32() -> Config:
    """An indexer in each layer, of heads wider than what turns of them, in halves."""
    config = deepseek_v3()
    return config | {
        "architectures": ["DeepseekV32ForCausalLM"],
        "model_type": "deepseek_v32",
        "num_hidden_layers": 2,
        "index_topk": INDEX_TOPK,
        "index_head_dim": 64,
        "index_n_heads": INDEX_HEADS,
    }


def glm_moe_dsa() -> Config:
    """Four layers, two of which have an indexer, whose neighbours turn as pairs."""
    config = _latent("GlmMoeDsaForCausalLM", "glm_moe_dsa")
    del config["rope_theta"]
    return config | {
        "num_hidden_layers": 4,
        "n_group": 1,
        "topk_group": 1,
        "norm_topk_prob": True,
        "first_k_dense_replace": 2,
        "indexer_types": ["full", "shared", "full", "shared"],
        "index_topk": INDEX_TOPK,
        "index_head_dim": 48,
        "index_n_heads": INDEX_HEADS,
        "indexer_rope_interleave": True,
        "num_nextn_predict_layers": 0,
        "rope_parameters": {"rope_theta": 1000000.0, "rope_type": "default"},
    }
