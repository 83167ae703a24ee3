"""From the metadata of a GGUF file to the config.json of the model that it holds."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import UnsupportedModelError
from firelane.models.gguf.families import Config, Family, find, served
from firelane.models.gguf.metadata import Metadata
from firelane.models.rope_scaling import Plain

LLAMA3_TRAINED = tuple(1 << n for n in range(5, 21))
"""Positions that models may have been trained on: files have only the divisors that follow from them."""
LOW, HIGH = 1.0, 4.0
"""Factors of low and high frequencies of all models with this scaling."""
TOLERANCE = 1e-4


def family_of(metadata: Metadata) -> Family:
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
    heads = metadata.same("attention.head_count")
    hidden = metadata.integer("embedding_length")
    layers = metadata.integer("block_count") - metadata.integer("nextn_predict_layers", 0)
    config: Config = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "torch_dtype": dtype,
        "vocab_size": metadata.vocab_size,
        "max_position_embeddings": metadata.integer("context_length"),
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": metadata.integer("nextn_predict_layers", 0),
        "intermediate_size": metadata.same("feed_forward_length", 0),
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.same("attention.head_count_kv", heads),
        "head_dim": _head_dim(metadata, hidden // max(heads, 1)),
        "rms_norm_eps": metadata.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in metadata.shapes,
    }
    return config | _rope(metadata, config["head_dim"]) | family.config(metadata)


def _head_dim(metadata: Metadata, default: int) -> int:
    keys = metadata.integer("attention.key_length", default)
    values = metadata.integer("attention.value_length", keys)
    if keys != values:
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.attention.value_length = {values}: keys have {keys}, and that "
            "they differ is not supported"
        )
    return keys


def _rope(metadata: Metadata, head_dim: int) -> Config:
    theta = metadata.number("rope.freq_base", 10000.0)
    found: Config = {"rope_theta": theta}
    rotated = metadata.integer("rope.dimension_count", head_dim)
    if rotated != head_dim:
        found["partial_rotary_factor"] = rotated / head_dim
    scaling = _scaling(metadata, rotated, theta)
    return found | ({"rope_scaling": scaling} if scaling else {})


def _scaling(metadata: Metadata, rotated: int, theta: float) -> dict[str, Any] | None:
    divisors = metadata.vector("rope_freqs.weight")
    if divisors is not None:
        return _llama3(np.array(divisors, np.float32), rotated, theta)
    long, short = metadata.vector("rope_factors_long.weight"), metadata.vector("rope_factors_short.weight")
    if long is not None and short is not None:
        return {"rope_type": "longrope", "long_factor": long, "short_factor": short}
    kind = metadata.string("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number("rope.scaling.factor")}
    if kind == "yarn":
        return _yarn(metadata)
    raise UnsupportedModelError(
        f"metadata {metadata.architecture}.rope.scaling.type = {kind[:40]}: none, linear and yarn are "
        "supported"
    )


def _yarn(metadata: Metadata) -> dict[str, Any]:
    found: dict[str, Any] = {
        "rope_type": "yarn",
        "factor": metadata.number("rope.scaling.factor"),
        "original_max_position_embeddings": metadata.integer("rope.scaling.original_context_length"),
    }
    for ours, theirs in (("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")):
        if metadata.has(f"rope.scaling.{theirs}"):
            found[ours] = metadata.number(f"rope.scaling.{theirs}")
    if metadata.has("rope.scaling.attn_factor"):
        found["attention_factor"] = metadata.number("rope.scaling.attn_factor")
    return found


def _llama3(divisors: NDArray[np.float32], rotated: int, theta: float) -> dict[str, Any]:
    """The scaling whose divisors of frequencies these are; the largest is its factor."""
    factor = float(divisors.max(initial=1.0))
    for trained in LLAMA3_TRAINED:
        expected = _llama3_divisors(Plain(theta, rotated).frequencies, factor, trained)
        if len(expected) == len(divisors) and np.allclose(divisors, expected, rtol=TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": LOW,
                "high_freq_factor": HIGH,
                "original_max_position_embeddings": trained,
            }
    raise UnsupportedModelError(
        "tensor rope_freqs.weight: divisors of the rotation's frequencies are supported as Llama 3.1 has them"
    )


def _llama3_divisors(frequencies: NDArray[np.float64], factor: float, trained: int) -> NDArray[np.float64]:
    turns = trained * frequencies / (2 * np.pi)
    kept = np.clip((turns - LOW) / (HIGH - LOW), 0.0, 1.0)
    return 1 / ((1 - kept) / factor + kept)
