"""Families of which each has ops that none of the others has: what is slow is tested with them alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from firelane.models.registry import load_program
from firelane.program.values import Weight
from tests.models.families import FAMILIES, config_of

Options = frozenset[Any]


def covering(families: Iterable[str] = FAMILIES) -> list[str]:
    """Some of `families` that have each kind of op with all the options that it has in any: that with the
    most first, until none has one more."""
    options = {family: options_of(family) for family in families}
    chosen: list[str] = []
    seen: Options = frozenset()
    while options:
        best = max(options, key=lambda family: len(options[family] - seen))
        if options[best] <= seen:
            break
        chosen.append(best)
        seen |= options.pop(best)
    return chosen


def options_of(family: str) -> Options:
    """Ops of a family without names and sizes."""
    program = load_program(config_of(family, "float32"))
    return frozenset(_options(op) for op in program.ops)


def _options(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, int | float):
        return min(value, 2) if value in (0, 1) else 2
    if isinstance(value, Weight):
        return value.dtype
    if is_dataclass(value):
        inside = ((f.name, _options(getattr(value, f.name))) for f in fields(value) if f.name != "layer")
        return type(value).__name__, *inside
    if isinstance(value, tuple):
        return bool(value)
    return type(value).__name__
