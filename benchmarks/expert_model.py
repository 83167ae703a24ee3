"""A Qwen3-MoE of 1.5 B parameters, of which a token uses 0.3 B, with random bf16 weights, for benchmarks.

    expert_model.py DIR --tokenizer MODEL [--gguf FILE]

Writes a checkpoint in Hugging Face layout (3 GB) with the tokenizer of another model directory, whose
vocabulary has to fit; with --gguf also the same weights for llama.cpp (needs the gguf package).
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.models.registry import load_program
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "model_type": "qwen3_moe",
    "hidden_act": "silu",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "moe_intermediate_size": 384,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "norm_topk_prob": True,
    "num_hidden_layers": 18,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "vocab_size": 32768,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}
NAMES = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")


def random_bits(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.uint16]:
    """Matrices of standard deviation 0.02, vectors of ones, as bits of bf16."""
    if len(shape) == 1:
        return np.full(shape, 0x3F80, np.uint16)
    values = rng.standard_normal(shape, np.float32) * np.float32(0.02)
    return (values.view(np.uint32) >> 16).astype(np.uint16)


def write_checkpoint(directory: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = {p.tensor: p.shape for w in load_program(CONFIG).weights for p in w.pieces}
    header, at = {}, 0
    for name, shape in shapes.items():
        nbytes = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + nbytes]}
        at += nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(CONFIG, indent=2))
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write(random_bits(rng, shape).tobytes())


def expert_tensors(weight: Weight, checkpoint: Checkpoint) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    """The parts of a weight by expert as llama.cpp names them: [experts, n, k] each."""
    for part in ("gate", "up", "down"):
        names = [p.tensor for p in weight.pieces if p.tensor.endswith(f"{part}_proj.weight")]
        if names:
            layer = names[0].split(".")[2]
            yield f"blk.{layer}.ffn_{part}_exps.weight", np.stack([checkpoint.tensor(n) for n in names])


def gguf_tensors(directory: Path) -> Iterator[tuple[str, NDArray[np.uint16]]]:
    checkpoint = Checkpoint.open(directory)
    for weight in load_program(CONFIG).weights:
        if weight.layout.by_expert:
            yield from expert_tensors(weight, checkpoint)
            continue
        for name in weight.tensors:
            yield gguf_name(name), checkpoint.tensor(name)


def gguf_name(tensor: str) -> str:
    whole = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = tensor.removesuffix(".weight")
    if stem in whole:
        return f"{whole[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{NAMES[part]}.weight"


def write_gguf(directory: Path, file: Path) -> None:
    import gguf

    c, writer = CONFIG, gguf.GGUFWriter(file, "qwen3moe")
    writer.add_context_length(c["max_position_embeddings"])
    writer.add_embedding_length(c["hidden_size"])
    writer.add_block_count(c["num_hidden_layers"])
    writer.add_feed_forward_length(c["intermediate_size"])
    writer.add_expert_count(c["num_experts"])
    writer.add_expert_used_count(c["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(c["moe_intermediate_size"])
    writer.add_head_count(c["num_attention_heads"])
    writer.add_head_count_kv(c["num_key_value_heads"])
    writer.add_key_length(c["head_dim"])
    writer.add_value_length(c["head_dim"])
    writer.add_rope_freq_base(c["rope_theta"])
    writer.add_layer_norm_rms_eps(c["rms_norm_eps"])
    writer.add_vocab_size(c["vocab_size"])
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_tokenizer(writer, json.loads((directory / "tokenizer.json").read_text()))
    for name, bits in gguf_tensors(directory):
        if bits.ndim == 1 or "ffn_gate_inp" in name:  # llama.cpp keeps routers and norms in float32
            writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32))
        else:
            raw = (*bits.shape[:-1], 2 * bits.shape[-1])
            kind = gguf.GGMLQuantizationType.BF16
            writer.add_tensor(name, np.ascontiguousarray(bits).view(np.uint8), raw_shape=raw, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: Any, content: dict[str, Any]) -> None:
    import gguf

    tokens = sorted(content["model"]["vocab"].items(), key=lambda item: item[1])
    special = {token["id"] for token in content["added_tokens"]}
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kinds.CONTROL if i in special else kinds.NORMAL for _, i in tokens])
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in content["model"]["merges"]])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--tokenizer", type=Path, metavar="MODEL", required=True)
    parser.add_argument("--gguf", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if not (arguments.directory / "model.safetensors").exists():
        write_checkpoint(arguments.directory)
    for name in TOKENIZER:
        if (arguments.tokenizer / name).exists():
            shutil.copy(arguments.tokenizer / name, arguments.directory)
    if arguments.gguf:
        write_gguf(arguments.directory, arguments.gguf)


if __name__ == "__main__":
    main()
