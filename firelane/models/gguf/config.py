"""From the metadata of a GGUF file to the config.json of the model that it holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.families import GgufFamily, find, served
from firelane.models.gguf.metadata import Config, Metadata
from firelane.models.gguf.rope import read_rope


def family_of(metadata: Metadata) -> GgufFamily:
    """Raises UnsupportedModelError."""
    family = find(metadata)
    if family is None:
        raise UnsupportedModelError(
            f"GGUF files of architecture {metadata.architecture!r} are not supported; supported: "
            f"{', '.join(served())}"
        )
    return family


def read_config(metadata: Metadata, *, dtype: str) -> Config:
    """The content of config.json. dtype: of the matrices, as there. Raises UnsupportedModelError naming what
    is missing or not supported."""
    family = family_of(metadata)
    own = family.config(metadata)
    config: Config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "torch_dtype": dtype,
        "vocab_size": metadata.vocab_size,
        "max_position_embeddings": metadata.integer("context_length"),
        "hidden_size": metadata.size("embedding_length"),
        "num_hidden_layers": metadata.layers,
        "num_nextn_predict_layers": metadata.integer("nextn_predict_layers", 0),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in metadata.shapes,
    }
    config |= {key: read(metadata) for key, read in USUAL.items() if key not in own} | own
    rope = {} if {"rope_parameters", "rope_scaling"} & own.keys() else read_rope(metadata, config["head_dim"])
    return rope | config


def _heads(metadata: Metadata) -> int:
    return metadata.same("attention.head_count")


def _kv_heads(metadata: Metadata) -> int:
    return metadata.same("attention.head_count_kv", _heads(metadata))


def _head_dim(metadata: Metadata) -> int:
    keys = metadata.size("attention.key_length", _usual_head_dim(metadata))
    values = metadata.integer("attention.value_length", keys)
    if keys != values:
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.attention.value_length = {values}: keys have {keys}, and that "
            "they differ is not supported"
        )
    return keys


def _usual_head_dim(metadata: Metadata) -> int | None:
    if metadata.has("attention.key_length"):
        return None
    return metadata.size("embedding_length") // max(_heads(metadata), 1)


def _width(metadata: Metadata) -> int:
    return metadata.same("feed_forward_length", 0)


USUAL: dict[str, Callable[[Metadata], Any]] = {
    "intermediate_size": _width,
    "num_attention_heads": _heads,
    "num_key_value_heads": _kv_heads,
    "head_dim": _head_dim,
}
"""Keys that are read so where a family's config does not have them."""
