"""Targets: which tensors of a checkpoint are quantised. Those of matrix products are; embeddings (and heads
that are the same tensor), routers, norms, biases and all that has to be in float32 are not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from firelane.program.ops import Embed, Linear, Route
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Weight


@dataclass(frozen=True)
class Targets:
    """Names of tensors whose last axis are inputs, [n, k] or [experts, n, k]; and of those that hold outputs
    there (transposed), which no group of inputs lies together in."""

    tensors: tuple[str, ...]
    transposed: tuple[str, ...]


def find_targets(program: Program) -> Targets:
    """Matrices to quantise, in a program whose recipes are those of the checkpoint."""
    tables = {name for op in program.ops if isinstance(op, Embed) for name in op.table.tensors}
    by_rows: dict[str, bool] = {}
    for weight in _multiplied(program):
        for piece in weight.pieces:
            if piece.tensor not in tables:
                by_rows[piece.tensor] = by_rows.get(piece.tensor, False) or _has_inputs_last(piece)
    return Targets(
        tuple(name for name, fits in by_rows.items() if fits),
        tuple(name for name, fits in by_rows.items() if not fits),
    )


def _multiplied(program: Program) -> Iterator[Weight]:
    """Matrices in bf16, each once, but for those that choose experts."""
    chosen_from = {op.logits for op in program.ops if isinstance(op, Route)}
    for op in program.ops:
        if isinstance(op, Linear) and op.out in chosen_from:
            continue
        for product in op.products:
            if product.weight.dtype is DType.BF16:
                yield product.weight


def _has_inputs_last(piece: Piece) -> bool:
    """Whether the tensor's last axis are the inputs that it was made for. A matrix of two axes may be read
    the other way round, head by head (latent attention)."""
    if len(piece.shape) == 2:
        return piece.order != (1, 0)
    return len(piece.shape) == 3 and piece.grid.column_stride == 1 and piece.width == piece.shape[-1]
