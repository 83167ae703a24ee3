"""A Program with room for low-rank adapters: before each product that can be adapted, two ops make what the
adapters of the step's rows add to it. Values, weights and draws of the program stay the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from firelane.contract import AdapterLimits
from firelane.program.ops import (
    Adapted,
    GatedLinear,
    Linear,
    LoraExpand,
    LoraShrink,
    LowRankPart,
    Op,
)
from firelane.program.ops.low_rank import RANK_UNIT
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

SUFFIX = ".weight"
"""A module's weight is the tensor of its name with this behind it."""


def with_adapters(program: Program, limits: AdapterLimits) -> Program:
    """The program whose products have what adapters add: see ops/low_rank.py."""
    rank = -(-limits.max_rank // RANK_UNIT) * RANK_UNIT
    parts = adapted_parts(program)
    ops = list[Op]()
    for op in program.ops:
        if isinstance(op, Linear | GatedLinear) and _is_adaptable(op, program) and op.weight in parts:
            adapted = Adapted(
                weight=op.weight.name,
                parts=parts[op.weight],
                n=op.weight.rows,
                k=op.weight.k,
                rank=rank,
                adapters=limits.max_adapters,
            )
            ops += _adapted(op, adapted)
        else:
            ops.append(op)
    return replace(program, ops=tuple(ops))


def adaptable_modules(program: Program) -> dict[str, tuple[int, int]]:
    """The shape of the weight of each module that the program has, and that can be adapted."""
    return {part.module: part.shape for parts in adapted_parts(program).values() for part in parts}


def adapted_parts(program: Program) -> dict[Weight, tuple[LowRankPart, ...]]:
    """By weight of the products that can be adapted, the modules that it is made of. A module of which some
    rows are used elsewhere, or changed, has no part anywhere."""
    weights = dict.fromkeys(
        op.weight for op in program.ops if isinstance(op, Linear | GatedLinear) and _is_adaptable(op, program)
    )
    other = [weight for weight in program.weights if weight not in weights]
    barred = {piece.tensor for weight in other for piece in weight.pieces}
    barred |= {p.tensor for weight in weights for p in weight.pieces if not _has_whole_rows(p)}
    found = {weight: _parts(weight, barred) for weight in weights}
    return {weight: parts for weight, parts in found.items() if parts}


def adapted_products(program: Program) -> dict[str, Adapted]:
    """The products of a program with_adapters, by name of their weight."""
    return {op.adapted.weight: op.adapted for op in program.ops if isinstance(op, LoraShrink)}


def _is_adaptable(op: Op, program: Program) -> bool:
    """The head is not: vLLM and PEFT replace it as a whole."""
    return isinstance(op, Linear | GatedLinear) and op != program.head and op.x.rows is not Rows.OWN


def _has_whole_rows(piece: Piece) -> bool:
    """Whether each row of the piece is one of the tensor, unchanged."""
    if len(piece.shape) != 2 or piece.columns is not None or piece.plus or piece.padding:
        return False
    grid, k = piece.grid, piece.shape[1]
    return (grid.columns, grid.column_stride) == (k, 1) and not (piece.offsets(0, piece.height) % k).any()


def _parts(weight: Weight, barred: set[str]) -> tuple[LowRankPart, ...]:
    starts = accumulate((piece.height for piece in weight.pieces), initial=0)
    pieces: dict[str, list[tuple[int, Piece]]] = {}
    for first, piece in zip(starts, weight.pieces, strict=False):
        if piece.tensor.endswith(SUFFIX) and piece.tensor not in barred:
            pieces.setdefault(piece.tensor, []).append((first, piece))
    return tuple(
        LowRankPart(
            module=name.removesuffix(SUFFIX),
            shape=(found[0][1].shape[0], found[0][1].shape[1]),
            pieces=tuple(found),
        )
        for name, found in pieces.items()
    )


def _adapted(op: Linear | GatedLinear, adapted: Adapted) -> tuple[Op, Op, Op]:
    """The op, behind two that make what is added: to the sums of a gated product, to the residual of a plain
    one."""
    rows, name = op.x.rows, op.out.name
    shrunk = Value(f"{name}.shrunk", rows, adapted.width, DType.F32)
    added = Value(f"{name}.adapted", rows, adapted.n, DType.F32)
    shrink = LoraShrink(x=op.x, adapted=adapted, out=shrunk)
    if isinstance(op, GatedLinear):
        expand = LoraExpand(y=shrunk, adapted=adapted, out=added)
        return shrink, expand, replace(op, delta=added)
    expand = LoraExpand(y=shrunk, adapted=adapted, residual=op.residual, scale=op.scale, out=added)
    return shrink, expand, replace(op, residual=added)
