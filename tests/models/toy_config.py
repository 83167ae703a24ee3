"""The base of all toy models' configs."""

from __future__ import annotations

from typing import Any

SPECIALS = ["<s>", "</s>", "<pad>", "<|im_start|>", "<|im_end|>"]
VOCAB_SIZE = 256 + len(SPECIALS)
BOS, EOS, PAD = 256, 257, 258
MAX_LEN = 256
WINDOW = 24
Config = dict[str, Any]


def base(architecture: str, model_type: str) -> Config:
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
