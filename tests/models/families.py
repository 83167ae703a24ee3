"""Toy checkpoints of every supported family, written to disk as a hub would hold them: config, weights,
tokenizer.

Sizes are small and awkward (no multiple of a panel). Weights are drawn so that activations stay near one and
logits spread over several units: the margin of the best token is then far above rounding noise.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from firelane.models.registry import load_program
from firelane.program.recipes import Piece
from firelane.program.values import Weight
from tests.weights.files import write_safetensors

SPECIALS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 256 + len(SPECIALS)
BOS, EOS, PAD = 256, 257, 258
MAX_LEN = 256
WINDOW = 24
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
EXPERTS = 6
PICKS_KEYS = ("num_experts_per_tok", "moe_k")
Config = dict[str, Any]
CYCLE = ["sliding_attention", "full_attention"]


def _base(architecture: str, model_type: str) -> Config:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_act": "silu",
        "hidden_size": 80,
        "intermediate_size": 136,
        "num_attention_heads": 5,
        "num_hidden_layers": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": MAX_LEN,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB_SIZE,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": PAD,
        "use_cache": True,
        "initializer_range": 0.02,
        "tie_word_embeddings": False,
    }


def llama2() -> Config:
    """Multi-head attention, untied, with the keys of older configs."""
    config = _base("LlamaForCausalLM", "llama") | {
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
    return _base("LlamaForCausalLM", "llama") | {
        "hidden_size": 96,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rope_parameters": rope,
        "tie_word_embeddings": True,
    }


def llama_bias() -> Config:
    """Biases everywhere, linear frequency scaling."""
    return _base("LlamaForCausalLM", "llama") | {
        "attention_bias": True,
        "mlp_bias": True,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "linear", "factor": 2.0},
    }


def mistral() -> Config:
    """A sliding window, and heads that together are wider than the hidden size."""
    return _base("MistralForCausalLM", "mistral") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": WINDOW,
        "rope_theta": 10000.0,
    }


def qwen2() -> Config:
    """Biases on q, k, v; a window in the second layer only; tied."""
    return _base("Qwen2ForCausalLM", "qwen2") | {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 1,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    }


def qwen3() -> Config:
    """Norms on each query and key head."""
    return _base("Qwen3ForCausalLM", "qwen3") | {
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
    return _base("Gemma2ForCausalLM", "gemma2") | {
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
    return _base("Gemma3ForCausalLM", "gemma3_text") | {
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
    return _base("Gemma4ForCausalLM", "gemma4_text") | {
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
    return _base("Olmo2ForCausalLM", "olmo2") | {
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
    return _base("Olmo3ForCausalLM", "olmo3") | {
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
    return _base("SmolLM3ForCausalLM", "smollm3") | {
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
    return _base("GraniteForCausalLM", "granite") | {
        "embedding_multiplier": 6.0,
        "attention_multiplier": 0.35,
        "residual_multiplier": 0.6,
        "logits_scaling": 0.5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    }


def exaone4() -> Config:
    """Windows with positions, full layers without; norms behind blocks."""
    return _base("Exaone4ForCausalLM", "exaone4") | {
        "sliding_window": WINDOW,
        "sliding_window_pattern": "LG",
        "layer_types": CYCLE,
        "rope_parameters": llama3()["rope_parameters"],
    }


def seed_oss() -> Config:
    """Biases of queries, keys and values; a head size of its own."""
    return _base("SeedOssForCausalLM", "seed_oss") | {
        "attention_bias": True,
        "attention_out_bias": False,
        "head_dim": 32,
        "residual_dropout": 0.1,
        "rope_theta": 10000000.0,
    }


def phi3() -> Config:
    """Fused projections, a window."""
    return _base("Phi3ForCausalLM", "phi3") | {
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
    return _base("Glm4ForCausalLM", "glm4") | {
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
    return _base("Ministral3ForCausalLM", "ministral3") | {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "sliding_window": None,
        "rope_parameters": yarn,
    }


def _experts(architecture: str, model_type: str, count: str = "num_experts") -> Config:
    """Six experts of which each token uses two."""
    return _base(architecture, model_type) | {
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


FAMILIES: dict[str, Callable[[], Config]] = {
    "llama2": llama2,
    "llama3": llama3,
    "llama_bias": llama_bias,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
    "gemma2": gemma2,
    "gemma3": gemma3,
    "gemma4": gemma4,
    "olmo2": olmo2,
    "olmo3": olmo3,
    "smollm3": smollm3,
    "granite": granite,
    "exaone4": exaone4,
    "seed_oss": seed_oss,
    "phi3": phi3,
    "phi4_mini": phi4_mini,
    "glm4": glm4,
    "glm": glm,
    "ministral3": ministral3,
    "mixtral": mixtral,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "glm4_moe": glm4_moe,
    "minimax_m2": minimax_m2,
    "ernie4_5_moe": ernie4_5_moe,
}


def make_checkpoint(name: str, dtype: str, directory: Path, seed: int = 0) -> Path:
    """Write family `name` with random weights in `dtype` (bfloat16, float32 or float16); returns the
    directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = config_of(name, dtype)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(directory / "model.safetensors", random_tensors(config, seed), dtype)
    _write_tokenizer(directory)
    return directory


def config_of(name: str, dtype: str) -> Config:
    """In bf16 each token uses all experts: near ties of experts fall another way there than in float32, and
    then logits of a toy have nothing in common."""
    config = FAMILIES[name]() | {"torch_dtype": dtype}
    if dtype == "bfloat16":
        config |= {key: EXPERTS for key in PICKS_KEYS if key in config}
        config |= {"topk_group": config["n_group"]} if "n_group" in config else {}
    return config


def random_tensors(config: Config, seed: int) -> dict[str, np.ndarray]:
    """All tensors of the model in float32."""
    rng = np.random.default_rng(seed)
    return {
        piece.tensor: _random(rng, weight, piece)
        for weight in load_program(config).weights
        for piece in weight.pieces
    }


def _random(rng: np.random.Generator, weight: Weight, piece: Piece) -> np.ndarray:
    tensor, values = piece.tensor, rng.standard_normal(piece.shape, np.float32)
    if tensor.endswith("e_score_correction_bias"):
        return values * np.float32(0.1)
    if tensor.endswith(".bias"):
        return values * np.float32(0.3)
    if values.ndim == 1:
        return np.float32(1 - piece.plus) + values * np.float32(0.2)
    spread = 3.0 if tensor in ("lm_head.weight", "model.embed_tokens.weight") else 1.0
    return values * np.float32(spread * weight.k**-0.5)


def _write_tokenizer(directory: Path) -> None:
    """Byte-level, without merges: token i is byte i, then the special tokens."""
    byte_of = bytes_to_unicode()
    vocab = {byte_of[i]: i for i in range(256)}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    core.add_special_tokens([tokenizers.AddedToken(t, special=True, normalized=False) for t in SPECIALS])
    core.save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "chat_template": CHAT_TEMPLATE,
        "model_max_length": MAX_LEN,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    generation = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
    (directory / "generation_config.json").write_text(json.dumps(generation))


def bytes_to_unicode() -> dict[int, str]:
    """The printable stand-in of each byte in byte-level vocabularies (GPT-2's table)."""
    printable = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    table = {b: chr(b) for b in printable}
    others = (b for b in range(256) if b not in table)
    return table | {b: chr(256 + i) for i, b in enumerate(others)}
