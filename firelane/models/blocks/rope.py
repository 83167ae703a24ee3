"""The rotary embedding of a config: frequencies (float32, as the models' own code rounds them), the factor of
cosines and sines, and the layout of heads in the checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.models.blocks.rope_scaling import KINDS, Plain
from firelane.models.blocks.rope_section import RopeSection
from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Rotary

DEFAULT_THETA = 10000.0
MROPE = ("mrope_section", "mrope_interleaved")
"""Axes of positions of images: those of text are equal on all of them."""


@dataclass(frozen=True, kw_only=True)
class Rope:
    """The rotation of one kind of layer. mscale: yarn's factor for models that give `mscale_all_dim`; latent
    attention multiplies its scale with the square of it."""

    rotary: Rotary
    layout: RotaryLayout
    mscale: float = 1.0


def read_rope(
    config: ConfigReader,
    *,
    head_dim: int,
    layer_type: str = "",
    default_theta: float = DEFAULT_THETA,
    partial: float | None = None,
    interleaved: bool = False,
    within: int = 0,
    beside: tuple[str, ...] = (),
) -> Rope:
    """Reads rope_parameters (newer configs), or rope_theta and rope_scaling (older ones), of the layers of
    `layer_type` where there may be one object a type. partial: the share of each head that turns, where the
    config does not say; None: the family turns whole heads. interleaved: whether neighbours are pairs.
    within: of heads so wide these `head_dim` columns are the share that turns; 0: they are whole heads.
    beside: keys of the section that the family reads itself, or that change nothing in it. Raises
    UnsupportedModelError.
    """
    section = RopeSection(config, layer_type)
    section.own.ignore(*beside)
    for name in ("rope_interleave", "rope_interleaved"):
        config.only(name, interleaved)
    kind, key = section.kind, "rope_type" if section.own.has("rope_type") else "type"
    if kind not in KINDS:
        raise section.own.refusal(key, kind, f"supported: {', '.join(KINDS)}")
    whole, partial = (within, head_dim / within) if within else (head_dim, partial)
    rotated = head_dim if kind == "proportional" else section.rotated(whole, partial or 1.0)
    if rotated != head_dim and (within or partial is None):
        why = f"{head_dim} of {within} columns turn" if within else "only full rotation is supported"
        raise config.refusal("partial_rotary_factor", rotated / whole, why)
    scaled = KINDS[kind](section, Plain(section.theta(default_theta), rotated))
    section.finish()
    return Rope(
        rotary=_rotary(scaled.frequencies, head_dim, scaled.factor),
        layout=RotaryLayout(head_dim, rotated, interleaved),
        mscale=scaled.mscale,
    )


def plain_rope(theta: float, *, head_dim: int, rotated: int = 0) -> Rope:
    """The first columns of a head, 0 for the whole of it, turned in halves, nothing stretched."""
    rotated = rotated or head_dim
    frequencies = Plain(theta, rotated).frequencies
    return Rope(rotary=_rotary(frequencies, head_dim, 1.0), layout=RotaryLayout(head_dim, rotated))


def widened(rope: Rope, head_dim: int, *, interleaved: bool) -> Rope:
    """The same angles for heads so wide, of which the first columns turn, neighbours as pairs where they are
    `interleaved`."""
    turned = rope.rotary.inverse_frequencies
    rotary = _rotary(np.array(turned, np.float32), head_dim, rope.rotary.scale)
    return Rope(rotary=rotary, layout=RotaryLayout(head_dim, 2 * len(turned), interleaved))


def _rotary(frequencies: np.ndarray, head_dim: int, factor: float) -> Rotary:
    padded = np.zeros(head_dim // 2, np.float32)  # what is passed on turns at frequency 0
    padded[: len(frequencies)] = frequencies
    return Rotary(inverse_frequencies=tuple(float(f) for f in padded), scale=factor)
