"""Configs of toy models of the dense families."""

from __future__ import annotations

from tests.models.toy_config import MAX_LEN, VOCAB_SIZE, WINDOW, Config, base

CYCLE = ["sliding_attention", "full_attention"]


def llama2() -> Config:
    """Multi-head attention, untied, with the keys of older configs."""
    config = base("LlamaForCausalLM", "llama") | {
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "pretraining_tp": 1,
    }
    del config["num_key_value_heads"]
    return config


def llama3() -> Config:
    """Grouped queries, llama3 frequency scaling, tied."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    return base("LlamaForCausalLM", "llama") | {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": rope,
        "tie_word_embeddings": True,
    }


def llama_bias() -> Config:
    """Biases everywhere, linear frequency scaling."""
    return base("LlamaForCausalLM", "llama") | {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }


def mistral() -> Config:
    """A sliding window, and heads that together are wider than the hidden size."""
    return base("MistralForCausalLM", "mistral") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": WINDOW,
        "rope_theta": 10000.0,
    }


def qwen2() -> Config:
    """Biases on q, k, v; a window in the second layer only; tied."""
    return base("Qwen2ForCausalLM", "qwen2") | {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    }


def qwen3() -> Config:
    """Norms on each query and key head."""
    return base("Qwen3ForCausalLM", "qwen3") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "attention_bias": False,
        "use_sliding_window": False,
        "sliding_window": None,
        "max_window_layers": 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0},
    }


def gemma2() -> Config:
    """Capped scores and logits, norms around blocks, windows in even layers."""
    return base("Gemma2ForCausalLM", "gemma2") | {
        "hidden_size": 144,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 15.0,
        "cache_implementation": "hybrid",
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }


def gemma3() -> Config:
    """The language model of a multimodal checkpoint; a rotation a layer type, the full ones stretched."""
    return base("Gemma3ForCausalLM", "gemma3_text") | {
        "hidden_size": 144,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "layer_types": [*CYCLE, "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tie_word_embeddings": True,
    }


def gemma4() -> Config:
    """Full layers with wider heads whose keys are their values; normalised values; factors of the stream."""
    return base("Gemma4ForCausalLM", "gemma4_text") | {
        "hidden_size": 144,
        "hidden_activation": "gelu_pytorch_tanh",
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "attention_k_eq_v": True,
        "sliding_window": WINDOW,
        "layer_types": CYCLE,
        "final_logit_softcapping": 15.0,
        "hidden_size_per_layer_input": 0,
        "num_kv_shared_layers": 0,
        "enable_moe_block": False,
        "rope_parameters": {
            "full_attention": {
                "rope_type": "proportional",
                "partial_rotary_factor": 0.25,
                "rope_theta": 1000000.0,
            },
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
        "tie_word_embeddings": True,
    }


def olmo2() -> Config:
    """Norms behind blocks alone, and of all heads together."""
    return base("Olmo2ForCausalLM", "olmo2") | {
        "num_key_value_heads": 5,
        "rope_theta": 500000.0,
    }


def olmo3() -> Config:
    """OLMo 2 with windows; yarn in the full layers alone."""
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500000.0,
        "attention_factor": 1.2,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
    }
    return base("Olmo3ForCausalLM", "olmo3") | {
        "num_key_value_heads": 5,
        "sliding_window": WINDOW,
        "layer_types": CYCLE,
        "rope_parameters": {
            "full_attention": yarn,
            "sliding_attention": {"rope_type": "default", "rope_theta": 500000.0},
        },
    }


def smollm3() -> Config:
    """A layer without positions; tied."""
    return base("SmolLM3ForCausalLM", "smollm3") | {
        "no_rope_layers": [1, 0],
        "no_rope_layer_interval": 4,
        "layer_types": ["full_attention", "full_attention"],
        "use_sliding_window": False,
        "sliding_window": None,
        "rope_theta": 2000000.0,
        "tie_word_embeddings": True,
    }


def granite() -> Config:
    """Factors everywhere."""
    return base("GraniteForCausalLM", "granite") | {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.35,
        "residual_multiplier": 0.6,
        "logits_scaling": 0.5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }


def exaone4() -> Config:
    """Windows with positions, full layers without; norms behind blocks."""
    return base("Exaone4ForCausalLM", "exaone4") | {
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LG",
        "layer_types": CYCLE,
        "rope_parameters": llama3()["rope_parameters"],
    }


def seed_oss() -> Config:
    """Biases of queries, keys and values; a head size of its own."""
    return base("SeedOssForCausalLM", "seed_oss") | {
        "attention_bias": True,
        "attention_out_bias": False,
        "head_dim": 32,
        "residual_dropout": 0.1,
        "rope_theta": 10000000.0,
    }


def phi3() -> Config:
    """Fused projections, a window."""
    return base("Phi3ForCausalLM", "phi3") | {
        "sliding_window": WINDOW,
        "rope_theta": 10000.0,
        "original_max_position_embeddings": MAX_LEN,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
    }


def phi4_mini() -> Config:
    """Three quarters of each head rotated, with a factor for each pair: the short set, since no more
    positions are served than were trained."""
    return phi3() | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": 128,
        "sliding_window": None,
        "partial_rotary_factor": 0.75,
        "rope_scaling": {
            "type": "longrope",
            "short_factor": [1.0 + 0.05 * i for i in range(12)],
            "long_factor": [1.5 + 0.3 * i for i in range(12)],
        },
        "tie_word_embeddings": True,
    }


def glm4() -> Config:
    """Neighbours of half of each head rotated; norms around blocks."""
    return base("Glm4ForCausalLM", "glm4") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "attention_bias": True,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
    }


def glm() -> Config:
    """The same without norms behind blocks."""
    return glm4() | {"architectures": ["GlmForCausalLM"], "model_type": "glm"}


def ministral3() -> Config:
    """Queries with a temperature by position; yarn."""
    yarn = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 32,
        "rope_theta": 1000000.0,
        "llama_4_scaling_beta": 0.3,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    }
    return base("Ministral3ForCausalLM", "ministral3") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": None,
        "rope_parameters": yarn,
    }


def llama_nemotron() -> Config:
    """Layers with key heads and widths of their own, one without attention, one without an MLP."""

    def block(group: int | None, share: float | None) -> Config:
        attention = {"n_heads_in_group": group, "no_op": group is None, "replace_with_linear": False}
        return {"attention": attention, "ffn": {"ffn_mult": share, "no_op": share is None}}

    return base("DeciLMForCausalLM", "nemotron-nas") | {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": None,
        "intermediate_size": None,
        "num_hidden_layers": 4,
        "block_configs": [block(6, 2.625), block(None, 5.25), block(3, None), block(2, 1.3125)],
        "rope_scaling": llama3()["rope_parameters"],
    }


def gemma4_e() -> Config:
    """Inputs of each layer, and last layers that attend to the keys of others, with MLPs twice as wide."""
    return gemma4() | {
        "num_hidden_layers": 4,
        "layer_types": CYCLE * 2,
        "attention_k_eq_v": False,
        "num_global_key_value_heads": None,
        "head_dim": 16,
        "global_head_dim": 32,
        "hidden_size_per_layer_input": 36,
        "vocab_size_per_layer_input": VOCAB_SIZE + 3,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    }


def ernie4_5() -> Config:
    """Neighbours are rotated, biases everywhere, tied."""
    return base("Ernie4_5ForCausalLM", "ernie4_5") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "use_bias": True,
        "tie_word_embeddings": True,
        "rope_theta": 500000.0,
    }


def helium() -> Config:
    """Neighbours are rotated; heads are as wide together as the model."""
    return base("HeliumForCausalLM", "helium") | {
        "hidden_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "rms_norm_eps": 1e-8,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": 100000.0,
    }
