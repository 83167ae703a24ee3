"""A gpt-oss of 1.6 B parameters, experts in MXFP4 as they are published, of random numbers, for benchmarks.

    mxfp4_model.py DIR --tokenizer MODEL

Writes a checkpoint in Hugging Face layout (1 GB) with the tokenizer of another model directory, whose
vocabulary has to fit. A token uses an eighth of the experts.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from expert_model import TOKENIZER, random_bits
from numpy.typing import NDArray

from firelane.models.registry import load_program

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"],
    "model_type": "gpt_oss",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 1024,
    "num_local_experts": 32,
    "num_experts_per_tok": 4,
    "num_hidden_layers": 15,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 128,
    "swiglu_limit": 7.0,
    "attention_bias": True,
    "layer_types": ["sliding_attention", "full_attention"] * 7 + ["sliding_attention"],
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 150000.0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 150000.0},
    "vocab_size": 32768,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
QUANTIZED = CONFIG | {"quantization_config": {"quant_method": "mxfp4"}}
EXPONENT = 119
"""The byte of all scales: with it numbers are about 0.02."""


def tensors_of(name: str, shape: tuple[int, ...]) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Tensors that one is stored as, with their dtypes and shapes."""
    if not name.endswith(("gate_up_proj", "down_proj")):
        return {name: ("BF16", shape)}
    experts, inputs, outputs = shape
    blocks = (experts, outputs, inputs // 32)
    return {f"{name}_blocks": ("U8", (*blocks, 16)), f"{name}_scales": ("U8", blocks)}


def values_of(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
    if name.endswith("_blocks"):
        return rng.integers(0, 256, shape, np.uint8)
    return np.full(shape, EXPONENT, np.uint8) if name.endswith("_scales") else random_bits(rng, shape)


def write_checkpoint(directory: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {p.tensor: p.shape for w in load_program(CONFIG).weights for p in w.pieces}
    stored = {part: entry for name in shapes for part, entry in tensors_of(name, shapes[name]).items()}
    header, at = {}, 0
    for name, (dtype, shape) in stored.items():
        nbytes = (2 if dtype == "BF16" else 1) * int(np.prod(shape))
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(QUANTIZED, indent=2))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, (_, shape) in stored.items():
            file.write(values_of(rng, name, shape).tobytes())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokenizer", type=Path, metavar="MODEL", required=True)
    arguments = parser.parse_args()
    if not (arguments.directory / "model.safetensors").exists():
        write_checkpoint(arguments.directory)
    for name in TOKENIZER:
        if (arguments.tokenizer / name).exists():
            shutil.copy(arguments.tokenizer / name, arguments.directory)


if __name__ == "__main__":
    main()
