"""Twelve Llamas of 0.1 to 1 B parameters with random weights, two of each size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from random_model import write_checkpoint, write_tokenizer

VOCAB = 32768
EACH = 2
ORDER = (2, 6, 3, 1, 5, 8, 0, 4, 9, 7, 11, 10)
"""Models by popularity."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama's; heads of 64 dimensions, four KV heads, tied embeddings."""

    width: int
    mlp: int
    layers: int

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "hidden_size": self.width,
            "intermediate_size": self.mlp,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.width // 64,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "vocab_size": VOCAB,
            "torch_dtype": "bfloat16",
            "tie_word_embeddings": True,
        }

    @property
    def parameters(self) -> int:
        layer = self.width * (2 * self.width + 2 * 256 + 3 * self.mlp)
        return layer * self.layers + VOCAB * self.width


SHAPES = (
    Shape(width=768, mlp=2048, layers=12),
    Shape(width=1024, mlp=2816, layers=14),
    Shape(width=1024, mlp=2816, layers=24),
    Shape(width=1280, mlp=3584, layers=24),
    Shape(width=1536, mlp=4096, layers=26),
    Shape(width=2048, mlp=5632, layers=21),
)


def write(directory: Path) -> None:
    for index in range(EACH * len(SHAPES)):
        path = directory / f"m{index}"
        write_checkpoint(path, SHAPES[index % len(SHAPES)].config, seed=index)
        write_tokenizer(path, VOCAB)
        print(f"{path}: {SHAPES[index % len(SHAPES)].parameters / 1e9:.2f} B parameters", flush=True)
