"""Models with random weights, as checkpoints in a directory, for benchmarks of what weights do not decide.

    random_model.py DIR --shape qwen3-0.6b|gemma3-1b|qwen3-next-1b|deepseek-v2-lite-1b

writes one in the shape of a published model, or of one scaled down, 1 to 2 GB.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.models.registry import load_program
from firelane.program.recipes import Piece
from firelane.sources.resolve import EMBEDDED

COMMON: dict[str, Any] = {
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
    },
    "gemma3-1b": COMMON
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "query_pre_attn_scalar": 256,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 512,
        "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    # Layers of Qwen3-Next, with the MLP of those without experts: nine delta networks, three of attention.
    "qwen3-next-1b": COMMON
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 12,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mlp_only_layers": list(range(12)),
        "partial_rotary_factor": 0.25,
        "vocab_size": 151936,
    },
    # Seven of the 27 layers of DeepSeek V2-Lite, with 12 of its 64 experts each, of which a token uses six.
    "deepseek-v2-lite-1b": COMMON
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "hidden_act": "silu",
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 7,
        "first_k_dense_replace": 1,
        "num_attention_heads": 16,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "n_routed_experts": 12,
        "num_experts_per_tok": 6,
        "n_shared_experts": 2,
        "vocab_size": 32768,
    },
}


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
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    weights = load_program(config).weights
    pieces = list({piece.tensor: (piece, w.k) for w in weights for piece in w.pieces}.values())
    header = _header([piece for piece, _ in pieces])
    rng = np.random.default_rng(seed)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for piece, k in pieces:
            file.write(_random_bits(rng, piece, k).data)


def _header(pieces: list[Piece]) -> bytes:
    text = json.dumps(dict(_places(pieces))).encode()
    return text + b" " * (-len(text) % 8)


def _places(pieces: list[Piece]) -> Iterator[tuple[str, dict[str, Any]]]:
    at = 0
    for piece in pieces:
        end = at + 2 * int(np.prod(piece.shape))
        yield piece.tensor, {"dtype": "BF16", "shape": piece.shape, "data_offsets": [at, end]}
        at = end


def _random_bits(rng: np.random.Generator, piece: Piece, k: int) -> NDArray[np.uint16]:
    values = rng.standard_normal(piece.shape, np.float32)
    values *= np.float32(0.2 if values.ndim == 1 else 2 * k**-0.5)
    if values.ndim == 1:
        values += np.float32(1 - piece.plus)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_tokenizer(directory: Path, vocab_size: int) -> None:
    """The embedded model's, with words of no meaning for the ids that it lacks, or without those too many."""
    shutil.copy(EMBEDDED / "tokenizer_config.json", directory)
    tokenizer = json.loads((EMBEDDED / "tokenizer.json").read_text())
    model = tokenizer["model"]
    kept = {word: i for word, i in model["vocab"].items() if i < vocab_size}
    model["vocab"] = kept | {f"Ġw{i}": i for i in range(len(kept), vocab_size)}
    model["merges"] = [m for m in model["merges"] if all(w in kept for w in (*_pair(m), "".join(_pair(m))))]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def _pair(merge: Any) -> Sequence[str]:
    return merge.split(" ") if isinstance(merge, str) else merge


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--shape", required=True, choices=list(SHAPES))
    arguments = parser.parse_args()
    write_checkpoint(arguments.directory, SHAPES[arguments.shape])


if __name__ == "__main__":
    main()
