"""Models of GGUF files as transformers has them: the numbers by the format's own library, rounded to bf16, in
a directory of Hugging Face's layout. Of Firelane only the reader of the file's header takes part, so that it
can be judged by them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import Gemma3TextConfig, LlamaConfig, PreTrainedConfig

from firelane.weights.gguf.header import GgufHeader, read_header

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS = {
    "llama": {"ffn_norm": "post_attention_layernorm"},
    "gemma3": {
        "post_attention_norm": "post_attention_layernorm",
        "ffn_norm": "pre_feedforward_layernorm",
        "post_ffw_norm": "post_feedforward_layernorm",
    },
}


def write_directory(path: Path, out: Path) -> Path:
    """The model of a GGUF file, of Llama's or Gemma 3's architecture, as config.json and weights in `out`."""
    data = np.memmap(path, np.uint8, "r")
    header = read_header(path, memoryview(data))
    kind = header.metadata["general.architecture"]
    sizes = {name.removeprefix(f"{kind}."): value for name, value in header.metadata.items()}
    config = CONFIGS[kind](sizes, len(sizes["tokenizer.ggml.tokens"]))
    config.save_pretrained(out)
    tensors = dict(_tensors(header, data, kind, sizes))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def _llama(sizes: dict[str, Any], vocab_size: int) -> PreTrainedConfig:
    return LlamaConfig(architectures=["LlamaForCausalLM"], **_config(sizes, vocab_size))


def _gemma3(sizes: dict[str, Any], vocab_size: int) -> PreTrainedConfig:
    """With what the architecture fixes and a GGUF file does not say."""
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "default", "rope_theta": sizes["rope.freq_base"]},
    }
    more = {
        "head_dim": sizes["attention.key_length"],
        "sliding_window": sizes["attention.sliding_window"],
        "query_pre_attn_scalar": sizes["attention.key_length"],
        "rope_parameters": rope,
    }
    return Gemma3TextConfig(architectures=["Gemma3ForCausalLM"], **_config(sizes, vocab_size) | more)


CONFIGS = {"llama": _llama, "gemma3": _gemma3}


def _config(sizes: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab_size,
        "hidden_size": sizes["embedding_length"],
        "intermediate_size": sizes["feed_forward_length"],
        "num_hidden_layers": sizes["block_count"],
        "num_attention_heads": sizes["attention.head_count"],
        "num_key_value_heads": sizes["attention.head_count_kv"],
        "max_position_embeddings": sizes["context_length"],
        "rms_norm_eps": sizes["attention.layer_norm_rms_epsilon"],
        "rope_theta": sizes["rope.freq_base"],
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def _tensors(
    header: GgufHeader, data: np.ndarray, kind: str, sizes: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    heads = {"attn_q": sizes["attention.head_count"], "attn_k": sizes["attention.head_count_kv"]}
    names = NAMES | NORMS[kind]
    for stored, tensor in header.tensors.items():
        *layer, part = stored.removesuffix(".weight").removeprefix("blk.").split(".")
        name = f"model.layers.{layer[0]}.{names[part]}" if layer else names[part]
        coded = data[tensor.begin : tensor.end]
        numbers = gguf.quants.dequantize(coded, gguf.GGMLQuantizationType(tensor.type.number))
        numbers = numbers.astype(np.float32).reshape(tensor.shape)
        if kind == "llama" and part in heads:
            numbers = _halves(numbers, heads[part])
        if kind == "gemma3" and part.endswith("norm"):
            numbers = numbers - np.float32(1)
        yield f"{name}.weight", torch.from_numpy(np.ascontiguousarray(numbers)).to(torch.bfloat16)


def _halves(numbers: np.ndarray, heads: int) -> np.ndarray:
    """Rows of queries or keys as transformers rotates them: in halves, not in pairs of neighbours."""
    return numbers.reshape(heads, -1, 2, numbers.shape[1]).swapaxes(1, 2).reshape(numbers.shape)
