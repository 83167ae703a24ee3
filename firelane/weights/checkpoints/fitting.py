"""The recipe of each weight that fits a checkpoint, where those of one model are stored in several ways."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from firelane.errors import CheckpointError
from firelane.program.ops import Op
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.checkpoints.head import tied_where_equal, with_stored_head
from firelane.weights.quantizing.schemes import Scheme
from firelane.weights.quantizing.targets import find_targets

log = logging.getLogger(__name__)


def fitted(
    program: Program, checkpoint: Checkpoint, *, rounds: bool = False, quantize: Scheme | None = None
) -> Program:
    """The program with recipes that the checkpoint has all tensors for, and with the checkpoint's head.
    rounds: matrices that are stored in more bits than the program has them in are rounded. quantize: what the
    matrices of products are quantised to. Raises CheckpointError as Checkpoint.check_against(), and where a
    tensor's shape does not tell how it is stored; UsageError where what is to be quantised is so already."""
    several = [w for w in program.weights if w.others]
    weights = {w.name: replace(w, pieces=_recipe(w, checkpoint), others=()) for w in several}
    if weights:
        program = replace(program, ops=tuple(_with_weights(op, weights) for op in program.ops))
    apart = with_stored_head(program, checkpoint)
    checkpoint.round_for(apart, asked=rounds)
    program = tied_where_equal(program, apart, checkpoint)
    checkpoint.check_against(program)
    if quantize is not None:
        _quantize(program, checkpoint, quantize)
    return program


def _quantize(program: Program, checkpoint: Checkpoint, scheme: Scheme) -> None:
    """The log says what is left as it is."""
    targets = find_targets(program)
    wide = {name: (checkpoint.shape(name) or (0,))[-1] for name in targets.tensors}
    fitting = [name for name, k in wide.items() if scheme.fits(k)]
    checkpoint.quantize(fitting, scheme)
    left = [*targets.transposed, *(name for name in wide if name not in fitting)]
    log.info(
        "weights_quantized model=%s to=%s tensors=%d left_as_they_are=%d",
        *(checkpoint.directory.name, scheme.name, len(fitting), len(left)),
    )


def _recipe(weight: Weight, checkpoint: Checkpoint) -> tuple[Piece, ...]:
    """The one that fits; where none does, that of which most tensors are there: what is wrong with it will be
    said."""
    recipes = (weight.pieces, *weight.others)
    fits = [recipe for recipe in recipes if _share(recipe, checkpoint, shapes=True) == 1]
    if len(fits) > 1:
        piece = fits[0][0]
        raise CheckpointError(
            f"{checkpoint.origin}: {piece.tensor} has shape {list(piece.shape)}, which does not "
            "tell whether it is transposed: store each of such square experts as a tensor of its own"
        )
    return fits[0] if fits else max(recipes, key=lambda recipe: _share(recipe, checkpoint, shapes=False))


def _share(recipe: tuple[Piece, ...], checkpoint: Checkpoint, *, shapes: bool) -> float:
    """The share of a recipe's pieces whose tensors are there, with their shapes if that is asked."""
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
