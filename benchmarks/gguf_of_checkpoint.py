"""A checkpoint of Qwen3 or Gemma 3 as a GGUF file of the same bf16 weights, for llama.cpp in benchmarks.

    gguf_of_checkpoint.py DIR FILE

Needs the packages gguf and numpy alone, so that llama.cpp's environment can run it. The file has no
tokenizer: it is for callers that give token ids.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WHOLE = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PROJECTIONS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMS = {
    "qwen3": {"post_attention_layernorm": "ffn_norm"},
    "gemma3": {
        "post_attention_layernorm": "post_attention_norm",
        "pre_feedforward_layernorm": "ffn_norm",
        "post_feedforward_layernorm": "post_ffw_norm",
    },
}
Bits = NDArray[np.uint16]


def architecture(config: dict[str, Any]) -> str:
    kind = config["model_type"].removesuffix("_text")
    if kind not in NORMS:
        raise SystemExit(f"{kind}: only {' and '.join(NORMS)} are written; convert others with llama.cpp")
    return kind


def tensors(path: Path) -> Iterator[tuple[str, Bits]]:
    data = np.memmap(path, np.uint8, mode="r")
    start = 8 + int(data[:8].view(np.uint64)[0])
    for name, entry in json.loads(data[8:start].tobytes()).items():
        begin, end = entry["data_offsets"]
        yield name, data[start + begin : start + end].view(np.uint16).reshape(entry["shape"])


def gguf_name(name: str, kind: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in WHOLE:
        return f"{WHOLE[stem]}.weight"
    _, _, layer, part = stem.split(".", 3)
    return f"blk.{layer}.{(PROJECTIONS | NORMS[kind])[part]}.weight"


def add_sizes(writer: Any, config: dict[str, Any]) -> None:
    import gguf

    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    if "sliding_window_pattern" in config:  # llama.cpp takes every sixth layer of gemma3 for a full one
        assert config["sliding_window_pattern"] == 6
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("none")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)


def add_tensor(writer: Any, name: str, bits: Bits, *, plus: float) -> None:
    """Matrices as they are; vectors in float32, with what the model adds to them."""
    import gguf

    if bits.ndim == 1:
        writer.add_tensor(name, (bits.astype(np.uint32) << 16).view(np.float32) + np.float32(plus))
        return
    raw = (bits.shape[0], 2 * bits.shape[1])
    writer.add_tensor(
        name, bits.view(np.uint8).reshape(raw), raw_shape=raw, raw_dtype=gguf.GGMLQuantizationType.BF16
    )


def write_gguf(directory: Path, file: Path) -> None:
    import gguf

    config = json.loads((directory / "config.json").read_text())
    kind = architecture(config)
    writer = gguf.GGUFWriter(file, kind)
    add_sizes(writer, config)
    for name, bits in tensors(directory / "model.safetensors"):
        add_tensor(writer, gguf_name(name, kind), bits, plus=1.0 if kind == "gemma3" else 0.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("file", type=Path)
    arguments = parser.parse_args()
    write_gguf(arguments.directory, arguments.file)


if __name__ == "__main__":
    main()
