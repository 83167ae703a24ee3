"""The recipe of each weight that fits a checkpoint, where those of one model are stored in several ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from firelane.errors import CheckpointError
from firelane.program.ops import Op
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Weight
from firelane.weights.checkpoint import Checkpoint


def fitted(program: Program, checkpoint: Checkpoint) -> Program:
    """The program with recipes that the checkpoint has all tensors for. Raises CheckpointError as
    Checkpoint.check_against(), and where a tensor's shape does not tell how it is stored."""
    several = [w for w in program.weights if w.others]
    weights = {w.name: replace(w, pieces=_recipe(w, checkpoint), others=()) for w in several}
    if weights:
        program = replace(program, ops=tuple(_with_weights(op, weights) for op in program.ops))
    checkpoint.round_for(program)
    checkpoint.check_against(program)
    return program


def _recipe(weight: Weight, checkpoint: Checkpoint) -> tuple[Piece, ...]:
    """The one that fits; where none does, that of which most tensors are there: what is wrong with it will be
    said."""
    recipes = (weight.pieces, *weight.others)
    fits = [recipe for recipe in recipes if _share(recipe, checkpoint, shapes=True) == 1]
    if len(fits) > 1:
        piece = fits[0][0]
        raise CheckpointError(
            f"{checkpoint.directory}: {piece.tensor} has shape {list(piece.shape)}, which does not "
            "tell whether it is transposed: store each of such square experts as a tensor of its own"
        )
    return fits[0] if fits else max(recipes, key=lambda recipe: _share(recipe, checkpoint, shapes=False))


def _share(recipe: tuple[Piece, ...], checkpoint: Checkpoint, *, shapes: bool) -> float:
    """Of its pieces, those whose tensors are there, with their shapes if that is asked."""
    there = [checkpoint.shape(p.tensor) for p in recipe]
    found = sum(s == p.shape if shapes else s is not None for s, p in zip(there, recipe, strict=True))
    return found / len(recipe)


def _with_weights(op: Op, weights: Mapping[str, Weight]) -> Op:
    """The op with those of its weights replaced that are named."""
    changed = {
        field: weights[value.name]
        for field, value in vars(op).items()
        if isinstance(value, Weight) and value.name in weights
    }
    return replace(cast(Any, op), **changed) if changed else op
