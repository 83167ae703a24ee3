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
Config = dict[str, Any]


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


FAMILIES: dict[str, Callable[[], Config]] = {
    "llama2": llama2,
    "llama3": llama3,
    "llama_bias": llama_bias,
    "mistral": mistral,
    "qwen2": qwen2,
    "qwen3": qwen3,
}


def make_checkpoint(name: str, dtype: str, directory: Path, seed: int = 0) -> Path:
    """Write family `name` with random weights in `dtype` (bfloat16, float32 or float16); returns the
    directory.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = FAMILIES[name]() | {"torch_dtype": dtype}
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    write_safetensors(directory / "model.safetensors", random_tensors(config, seed), dtype)
    _write_tokenizer(directory)
    return directory


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
    if tensor.endswith(".bias"):
        return values * np.float32(0.3)
    if values.ndim == 1:
        return 1 + values * np.float32(0.2)
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
