"""A small Mistral with random weights, as a checkpoint in a directory, for benchmarks of what weights do not
decide."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from firelane.models.registry import load_program


def mistral_config(*, layers: int, kv_heads: int, window: int | None, max_len: int) -> dict[str, Any]:
    """Narrow but for its KV cache: heads of 64 dimensions, two query heads for each KV head."""
    return {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": layers,
        "num_attention_heads": 2 * kv_heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 64,
        "sliding_window": window,
        "max_position_embeddings": max_len,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": 512,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }


def write_checkpoint(directory: Path, config: dict[str, Any], seed: int = 0) -> None:
    """config.json and one file of bf16 weights, scaled so that activations stay near one."""
    rng = np.random.default_rng(seed)
    header: dict[str, Any] = {}
    data = bytearray()
    for weight in load_program(config).weights:
        for piece in weight.pieces:
            values = rng.standard_normal(piece.shape, np.float32)
            values = 1 + 0.2 * values if values.ndim == 1 else 2 * values * weight.k**-0.5
            bits = (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes()
            offsets = [len(data), len(data) + len(bits)]
            header[piece.tensor] = {"dtype": "BF16", "shape": piece.shape, "data_offsets": offsets}
            data += bits
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
