"""Configs of multimodal models: a section for the language model, sections for eyes and ears, and few keys
that hold for all of them. Only the language model is served.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from firelane.models.config.reader import ConfigReader

SECTION = "text_config"
OF_OTHER_MEDIA = re.compile(
    r"(^|_)(vision|audio|image|img|video|media|speech|mm|multimodal|projector|projection|spatial|bo[iav]|eo[iav])(_|$)"
)
"""Keys that say how images and sounds become rows of the prompt."""
WITHOUT_EFFECT = ("language_model_only",)
"""Whether the other parts are there: they are left out in any case."""
DTYPES = ("dtype", "torch_dtype")
OF_BOTH = (DTYPES, ("quantization_config",))
"""Keys that may stand outside of the section and hold in it; each with its older name. Of two dtypes the
outer one holds, as in transformers."""
TIED = "tie_word_embeddings"
"""A key that may stand in both places and say two things: the checkpoint's tensors tell which one is so."""


class LanguageModel(NamedTuple):
    """The part of config.json that describes the language model, its name in messages, and keys beside it
    that nobody knows here."""

    config: Mapping[str, Any]
    where: str
    unknown: tuple[str, ...] = ()


def language_model(config: Mapping[str, Any]) -> LanguageModel:
    """All of config.json, or the section of a multimodal model with what holds for both. Raises
    UnsupportedModelError for a section that is none, and where both say different things that hold for both.
    """
    if config.get(SECTION) is None:
        return LanguageModel(config, "config.json")
    reader = ConfigReader(config)
    if not isinstance(config[SECTION], dict):
        raise reader.refusal(SECTION, config[SECTION], "an object is needed")
    section = cast(dict[str, Any], config[SECTION])
    reader.ignore(SECTION, TIED, *WITHOUT_EFFECT, *(key for key in config if OF_OTHER_MEDIA.search(key)))
    reader.ignore(*(key for key, value in config.items() if section.get(key) == value))
    found = dict(section)
    for names in OF_BOTH:
        reader.ignore(*names)
        outside, inside = _first(config, names), _first(section, names)
        if names != DTYPES and outside is not None and inside is not None and outside != inside:
            why = f"{SECTION} says {str(inside)[:60]!r}: make both the same"
            raise reader.refusal(names[0], outside, why)
        found |= dict.fromkeys(names, inside if outside is None else outside)
    said = [part[TIED] for part in (section, config) if part.get(TIED) is not None]
    if said:
        found[TIED] = True if True in said else said[0]
    reader.finish()
    return LanguageModel(found, f"config.json, {SECTION}", reader.unknown)


def _first(config: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((config[name] for name in names if config.get(name) is not None), None)
