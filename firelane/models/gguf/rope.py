"""Rotations and their scalings, from the metadata of a GGUF file as config.json has them."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.errors import UnsupportedModelError
from firelane.models.blocks.rope_scaling import Plain
from firelane.models.gguf.metadata import Config, Metadata

LLAMA3_TRAINED = tuple(1 << n for n in range(5, 21))
"""Positions that models may have been trained on: files have only the divisors that follow from them."""
LLAMA3_BANDS = ((1.0, 4.0), (1.0, 1.0))
"""Factors of low and high frequencies: of Llama 3 and of Llama 4."""
TOLERANCE = 1e-4
YARN_LOG = "rope.scaling.yarn_log_multiplier"


def read_rope(metadata: Metadata, head_dim: int) -> Config:
    """Keys of config.json that say how heads of this size are rotated."""
    theta = metadata.positive("rope.freq_base", 10000.0)
    found: Config = {"rope_theta": theta}
    rotated = metadata.size("rope.dimension_count", head_dim)
    if metadata.has("rope.dimension_count"):
        found["partial_rotary_factor"] = rotated / head_dim
    scaling = _scaling(metadata, rotated, theta)
    return found | ({"rope_scaling": scaling} if scaling else {})


def _scaling(metadata: Metadata, rotated: int, theta: float) -> dict[str, Any] | None:
    divisors = metadata.vector("rope_freqs.weight")
    if divisors is not None:
        check_unscaled(metadata, "rope_freqs.weight")
        return _llama3(np.array(divisors, np.float32), rotated, theta)
    long, short = metadata.vector("rope_factors_long.weight"), metadata.vector("rope_factors_short.weight")
    if long is not None and short is not None:
        check_unscaled(metadata, "rope_factors_long.weight")
        return {"rope_type": "longrope", "long_factor": long, "short_factor": short}
    kind = _kind(metadata)
    if kind == "none":
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": metadata.number(_factor_key(metadata))}
    if kind == "yarn":
        return yarn(metadata)
    raise UnsupportedModelError(
        f"metadata {metadata.architecture}.rope.scaling.type = {kind[:40]}: none, linear and yarn are "
        "supported"
    )


def _kind(metadata: Metadata) -> str:
    """The way that frequencies are stretched: linear where only a factor is said, none by a factor of 1."""
    kind, key = metadata.string("rope.scaling.type", ""), _factor_key(metadata)
    if kind in ("", "linear") and not (metadata.has(key) and metadata.number(key) not in (0.0, 1.0)):
        return "none"
    return kind or "linear"


def _factor_key(metadata: Metadata) -> str:
    """The entry of the factor, under its older name where there is only that."""
    older = metadata.has("rope.scale_linear") and not metadata.has("rope.scaling.factor")
    return "rope.scale_linear" if older else "rope.scaling.factor"


def check_unscaled(metadata: Metadata, tensor: str) -> None:
    """Raises UnsupportedModelError where frequencies that a tensor changes are to be stretched, too."""
    kind = _kind(metadata)
    if kind not in ("none", "longrope"):
        raise UnsupportedModelError(
            f"metadata {metadata.architecture}.{_factor_key(metadata)}: frequencies are changed by tensor "
            f"{tensor} and stretched ({kind[:40]}), which is not supported together"
        )


def yarn(metadata: Metadata) -> dict[str, Any]:
    """The section of a rotation that is stretched so."""
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
    if len(divisors) != rotated // 2:
        raise _not_llama3()
    for (low, high), trained in itertools.product(LLAMA3_BANDS, LLAMA3_TRAINED):
        turns = trained * Plain(theta, rotated).frequencies / (2 * np.pi)
        expected = _llama3_divisors(turns, factor, low, high)
        if np.allclose(divisors, expected, rtol=TOLERANCE):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": trained,
            }
    raise _not_llama3()


def _not_llama3() -> UnsupportedModelError:
    return UnsupportedModelError(
        "tensor rope_freqs.weight: divisors of the rotation's frequencies are supported as Llama 3.1 and 4 "
        "have them"
    )


def _llama3_divisors(
    turns: NDArray[np.float64], factor: float, low: float, high: float
) -> NDArray[np.float64]:
    """turns: of each pair, in all positions that the model was trained on."""
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else (turns >= high).astype(float)
    return 1 / ((1 - kept) / factor + kept)
