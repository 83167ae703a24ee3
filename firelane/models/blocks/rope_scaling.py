"""Ways to stretch a rotary embedding beyond the positions that it was trained on, each by the name that
configs give it: what it makes of the plain frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.models.blocks.rope_section import RopeSection

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class ScaledFrequencies:
    """frequencies: of the pairs of a head. factor: of cosines and sines. mscale: see Rope."""

    frequencies: F64
    factor: float = 1.0
    mscale: float = 1.0


@dataclass(frozen=True)
class Plain:
    """theta ** (-2i / dim) for the pairs i of `dim` dimensions."""

    theta: float
    dim: int

    @property
    def frequencies(self) -> F64:
        """Rounded to float32 where the models' own training code rounds."""
        return self.first(self.dim // 2)

    def first(self, pairs: int) -> F64:
        exponent = np.arange(0, 2 * pairs, 2, dtype=np.float32) / np.float32(self.dim)
        power = (self.theta ** exponent.astype(np.float64)).astype(np.float32)
        return (np.float32(1) / power).astype(np.float64)


def _default(_: RopeSection, plain: Plain) -> ScaledFrequencies:
    return ScaledFrequencies(plain.frequencies)


def _linear(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    return ScaledFrequencies(plain.frequencies / section.own.number("factor"))


def _dynamic(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    """Frequencies change for sequences longer than max_position_embeddings, which are not served."""
    section.own.number("factor")
    return ScaledFrequencies(plain.frequencies)


def _proportional(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    """The first pairs of the whole head turn, as many as partial_rotary_factor says."""
    pairs = int(section.share(plain.dim) * plain.dim // 2)
    return ScaledFrequencies(plain.first(pairs) / section.own.number("factor", 1.0))


def _llama3(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    """Long wavelengths are stretched by `factor`, short ones kept, those between blended linearly."""
    own, frequencies = section.own, plain.frequencies
    factor = own.number("factor")
    low, high = own.number("low_freq_factor"), own.number("high_freq_factor")
    if high < low:
        raise own.refusal("high_freq_factor", high, "it may not be less than low_freq_factor")
    turns = section.trained * frequencies / (2 * math.pi)  # rotations within the trained context
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0) if high > low else turns >= low
    return ScaledFrequencies((1 - blend) * frequencies / factor + blend * frequencies)


def _yarn(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    """Peng et al., "YaRN", 2023: pairs that turn less than beta_slow times within the trained context are
    stretched, those that turn more than beta_fast times kept, those between blended linearly."""
    own, trained = section.own, section.trained
    factor = own.number("factor", section.max_position_embeddings / trained)
    fast, slow = own.number("beta_fast", 32.0), own.number("beta_slow", 1.0)
    if fast < slow:
        raise own.refusal("beta_fast", fast, "it has to be beta_slow or larger")
    if plain.theta <= 1:
        raise own.refusal("rope_theta", plain.theta, "more than 1 is needed")
    low, high = (_pair_of(plain, trained, turns) for turns in (fast, slow))
    if own.boolean("truncate", True):
        low, high = float(math.floor(low)), float(math.ceil(high))
    low, high = max(low, 0.0), min(high, plain.dim - 1.0)
    steps = np.arange(plain.dim // 2) - low
    stretched = np.clip(steps / (high - low if high != low else 0.001), 0.0, 1.0)
    frequencies = plain.frequencies
    blended = frequencies / factor * stretched + frequencies * (1 - stretched)
    return ScaledFrequencies(blended, *_yarn_factors(section, factor))


def _pair_of(plain: Plain, trained: int, turns: float) -> float:
    """Which pair turns so many times within the trained context."""
    return plain.dim * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(plain.theta))


def _yarn_factors(section: RopeSection, factor: float) -> tuple[float, float]:
    """Factors of cosines and sines, and mscale."""
    own = section.own
    for_all = own.amount("mscale_all_dim", 0.0)
    mscale = own.amount("mscale", 0.0)
    of_all = _yarn_mscale(factor, for_all) if for_all else 1.0
    own_factor = _yarn_mscale(factor, 1.0)
    if mscale and for_all:
        own_factor = _yarn_mscale(factor, mscale) / of_all
    return own.number("attention_factor", own_factor), of_all


def _yarn_mscale(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(section: RopeSection, plain: Plain) -> ScaledFrequencies:
    """Ding et al., "LongRoPE", 2024: a factor a pair, of a set for sequences as long as those trained on, and
    of a set for longer ones. Which set holds depends on the longest sequence that is served, never on a
    sequence's own length: keys in the cache would change when it grows."""
    own, trained, count = section.own, section.trained, plain.dim // 2
    short, long = own.numbers("short_factor", count), own.numbers("long_factor", count)
    if trained < 2:
        raise own.refusal("original_max_position_embeddings", trained, "2 or more is needed")
    factor = own.number("factor", section.max_position_embeddings / trained)
    stretch = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    chosen = np.array(long if section.served > trained else short)
    return ScaledFrequencies(plain.frequencies / chosen, own.number("attention_factor", stretch))


KINDS: dict[str, Callable[[RopeSection, Plain], ScaledFrequencies]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "proportional": _proportional,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
}
