"""Families of which each has ops, or recipes of weights, that none of the others has: what is slow is tested
with them alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

from firelane.models.registry import load_program
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Weight
from tests.models.families import FAMILIES, config_of

Options = frozenset[Any]


def options_of(family: str) -> Options:
    """Ops of a family without names and sizes."""
    return frozenset(_options(op) for op in _program(family).ops)


def options_and_recipes_of(family: str) -> Options:
    """And the ways in which its weights are made of tensors."""
    weights = _program(family).weights
    recipes = {_recipe(weight, piece) for weight in weights for piece in weight.pieces}
    return options_of(family) | recipes


def covering(
    families: Iterable[str] = FAMILIES, options_of: Callable[[str], Options] = options_of
) -> list[str]:
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


@cache
def _program(family: str) -> Program:
    return load_program(config_of(family, "float32"))


def _recipe(weight: Weight, piece: Piece) -> Any:
    """Without names and sizes."""
    taken = tuple(kept is not None for kept in piece.take)
    cut = piece.rows is not None, piece.columns is not None
    seen = bool(piece.view), piece.order, taken, cut, piece.plus
    return weight.dtype, weight.layout, len(weight.pieces) > 1, bool(weight.others), *seen


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
