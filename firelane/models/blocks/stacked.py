"""Weights that are whole tensors of the checkpoint, stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, Weight

Tensors = Sequence[tuple[str, int]]
"""Tensors of the checkpoint, without the last part of their names, and how many rows each has."""


def stored_vector(name: str, tensor: str, width: int) -> Weight:
    """A vector that is one whole tensor, widened."""
    return Weight.stored(name, (width,), DType.F32, tensor)


def norm_vector(name: str, tensor: str, width: int, *, plus: float) -> Weight:
    """The weight of a norm, whose tensor is stored less `plus`."""
    piece = Piece(tensor=f"{tensor}.weight", shape=(width,), plus=plus)
    return Weight(name=name, shape=(width,), dtype=DType.F32, pieces=(piece,))


def stacked_matrix(
    name: str,
    tensors: Tensors,
    k: int,
    dtype: DType,
    layout: WeightLayout = WeightLayout.PLAIN,
) -> Weight:
    """A matrix of these tensors, one below the other."""
    pieces = tuple(Piece(tensor=f"{tensor}.weight", shape=(rows, k)) for tensor, rows in tensors)
    shape = (sum(rows for _, rows in tensors), k)
    return Weight(name=name, shape=shape, dtype=dtype, pieces=pieces, layout=layout)


def stacked_vector(
    name: str,
    tensors: Tensors,
    suffix: Literal["weight", "bias"] = "weight",
    layout: WeightLayout = WeightLayout.PLAIN,
) -> Weight:
    """A float32 vector of these tensors, one behind the other."""
    pieces = tuple(Piece(tensor=f"{tensor}.{suffix}", shape=(rows,)) for tensor, rows in tensors)
    shape = (sum(rows for _, rows in tensors),)
    return Weight(name=name, shape=shape, dtype=DType.F32, pieces=pieces, layout=layout)
