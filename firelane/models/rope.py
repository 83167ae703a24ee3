"""Rotary frequencies from a config: plain, linear (kaiokendev, 2023) and llama3 (Llama 3.1 report, 2024)
scaling.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from firelane.models.config import ConfigReader
from firelane.program.ops import Rotary

F64 = NDArray[np.float64]
ROPE_TYPES = ("default", "linear", "llama3")


def read_rotary(config: ConfigReader, *, head_dim: int, default_theta: float = 10000.0) -> Rotary:
    """Reads rope_parameters (newer configs) or rope_theta and rope_scaling (older ones).

    Raises UnsupportedModelError for other rope types (yarn, longrope, dynamic …) and for partial rotation.
    """
    section = config.section("rope_parameters") or config.section("rope_scaling")
    config.ignore("rope_parameters", "rope_scaling")
    theta = config.number("rope_theta", default_theta)
    _refuse_partial(config)
    if section is None:
        return _rotary(_plain(theta, head_dim))
    theta = section.number("rope_theta", theta)
    _refuse_partial(section)
    frequencies = _scaled(section, _plain(theta, head_dim))
    section.finish()
    return _rotary(frequencies)


def _refuse_partial(config: ConfigReader) -> None:
    factor = config.number("partial_rotary_factor", 1.0)
    if factor != 1.0:
        raise config.refusal("partial_rotary_factor", factor, "only full rotation is supported")


def _plain(theta: float, head_dim: int) -> F64:
    """theta ** (-2i / head_dim), rounded to float32 where the models' own training code rounds."""
    exponent = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    power = (theta ** exponent.astype(np.float64)).astype(np.float32)
    return (np.float32(1) / power).astype(np.float64)


def _scaled(section: ConfigReader, plain: F64) -> F64:
    key = "rope_type" if section.has("rope_type") else "type"
    kind = section.choice(key, "default", among=ROPE_TYPES)
    section.ignore("rope_type", "type")
    if kind == "default":
        return plain
    if kind == "linear":
        return plain / section.number("factor")
    return _llama3(section, plain)


def _llama3(section: ConfigReader, plain: F64) -> F64:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended linearly."""
    factor = section.number("factor")
    low, high = section.number("low_freq_factor"), section.number("high_freq_factor")
    trained = section.integer("original_max_position_embeddings")
    if high <= low:
        raise section.refusal("high_freq_factor", high, "it has to be larger than low_freq_factor")
    turns = trained * plain / (2 * math.pi)  # rotations within the trained context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * plain / factor + blend * plain


def _rotary(frequencies: F64) -> Rotary:
    return Rotary(inverse_frequencies=tuple(float(f) for f in frequencies.astype(np.float32)))
