"""GGUF files of toy models, written with the format's own library: names from its map of tensors, metadata
and changes of weights as llama.cpp's converter makes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from tests.models.gguf_conversions import Change, converted
from tests.models.toy_config import Config

EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
Quantise = Callable[[np.ndarray], tuple[np.ndarray, gguf.GGMLQuantizationType]]


def write_gguf(
    path: Path,
    architecture: str,
    config: Config,
    tensors: Mapping[str, np.ndarray],
    *,
    fields: Mapping[str, Any],
    in_pairs: bool = False,
    changes: Sequence[Change] = (),
    quantise: Quantise | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
) -> Path:
    """A model of these float32 tensors of transformers. fields: metadata beside those that all have, or in
    their place."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (_sizes(config) | dict(fields)).items():
        _add(writer, key if key.startswith("tokenizer.") else f"{architecture}.{key}", value)
    (tokenizer or add_byte_tokenizer)(writer)
    number = {name: n for n, name in gguf.MODEL_ARCH_NAMES.items()}[architecture]
    names = gguf.get_tensor_name_map(number, config["num_hidden_layers"])
    for name, values in converted(_merged(tensors), config, *changes).items():
        changed = _changed(name, values, config, in_pairs=in_pairs)
        known = name.replace("e_score_correction_bias", "e_score_correction.bias")
        stored = name if name.startswith("blk.") else names.get_name(known, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        _write(writer, stored, changed, quantise)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_byte_tokenizer(writer: gguf.GGUFWriter) -> None:
    """That of the toys: a token for each byte, then five special ones."""
    from tests.models.families import bytes_to_unicode
    from tests.models.toy_config import BOS, EOS, PAD, SPECIALS

    byte_of = bytes_to_unicode()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*(byte_of[i] for i in range(256)), *SPECIALS])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL] * len(SPECIALS))
    writer.add_token_merges([])
    writer.add_bos_token_id(BOS)
    writer.add_eos_token_id(EOS)
    writer.add_pad_token_id(PAD)
    writer.add_add_bos_token(False)


def _sizes(config: Config) -> dict[str, Any]:
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    rope = config | rope.get("full_attention", rope)
    return {
        "context_length": config.get("max_position_embeddings") or config["model_max_length"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config.get("intermediate_size") or 0,
        "attention.head_count": heads,
        "attention.head_count_kv": config.get("num_key_value_heads") or heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.get("rms_norm_eps") or config["norm_eps"],
        "rope.freq_base": float(rope["rope_theta"]),
        "rope.dimension_count": int(head_dim * rope.get("partial_rotary_factor", 1.0)),
    }


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _merged(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """With the experts of a layer in one tensor."""
    found: dict[str, Any] = {}
    for name, values in tensors.items():
        match = EXPERT.fullmatch(name)
        if match is None:
            found[name] = values
        else:
            found.setdefault(f"{match[1]}.{match[3]}.weight", []).append(values)
    return {name: np.stack(v) if isinstance(v, list) else v for name, v in found.items()}


def _changed(name: str, values: np.ndarray, config: Config, *, in_pairs: bool) -> np.ndarray:
    if name.endswith("shared_expert_gate.weight"):
        return values.reshape(-1)
    for part in ("q_proj", "k_proj"):
        if in_pairs and f".{part}." in name:
            heads = len(values) // _sizes(config)["attention.key_length"]
            halves = values.reshape(heads, 2, len(values) // heads // 2, -1)
            return halves.swapaxes(1, 2).reshape(values.shape)
    return values


def _write(writer: gguf.GGUFWriter, name: str, values: np.ndarray, quantise: Quantise | None) -> None:
    if quantise is None or values.ndim < 2:
        writer.add_tensor(name, np.ascontiguousarray(values, np.float32))
        return
    data, kind = quantise(np.ascontiguousarray(values, np.float32))
    writer.add_tensor(name, data, raw_dtype=kind)
