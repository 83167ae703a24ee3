"""Expert parallel: the program of one of several ranks that share the experts by id (Lepikhin et al.,
"GShard", 2020). Routing is on every rank; each adds up the experts that it has, and an all-reduce the ranks.
The segments of the sum are runs of ids: a token's sum has the same bits however many ranks there are.

Or the program of one that has some columns of every expert. Ranks then have equally much to do, whatever was
picked, and gather twice what they make: inside of experts, where each makes some of the columns, and behind
them, where each adds up some of the columns of all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import TypeGuard

from firelane.errors import UsageError
from firelane.parallel.segments import segmented
from firelane.parallel.shard import check_ranks
from firelane.program.ops import AllReduce, ExpertGatedLinear, ExpertLinear, GatherColumns, Op
from firelane.program.program import Program
from firelane.program.segments import SEGMENTS, segments_of, subtree
from firelane.program.values import RankPart, Weight

INSIDE_UNIT, OUTPUT_UNIT = 16, 32
"""Columns inside of an expert, and behind it, that stay together: those of a panel."""


def experts(program: Program, ep: int, rank: int, *, by_columns: bool = False) -> Program:
    """The program of rank `rank` of `ep`. A layer's one expert, which is a shared one with a gate, stays
    whole. Raises UsageError for a number of ranks that no cut exists for, or that has ranks without an
    expert, or without a column of each."""
    check_ranks("expert parallel", ep)
    program = segmented(program)
    if ep == 1:
        return program
    make = _columns if by_columns else _made
    return replace(program, ops=tuple(made for op in program.ops for made in make(op, ep, rank)))


def _columns(op: Op, ep: int, rank: int) -> Iterator[Op]:
    """The op with some columns of all experts, and what gathers them."""
    if not has_experts(op):
        yield op
        return
    gated = isinstance(op, ExpertGatedLinear)
    slots, unit = op.picks.width if gated else 1, INSIDE_UNIT if op.weight.layout.is_gated else OUTPUT_UNIT
    ranges = column_ranges(op.out.width // slots, unit, ep)
    if not all(ranges):
        raise UsageError(f"expert parallel {ep}: {op.out.name} has {op.out.width // slots} columns")
    mine, widths = ranges[rank], tuple(map(len, ranges))
    out = replace(op.out, name=f"{op.out.name}.part", width=slots * len(mine))
    weight, bias = op.weight.cut(rows=(mine,)), None if op.bias is None else op.bias.cut(rows=(mine,))
    residual = None if gated else op.residual
    if gated:
        yield replace(op, weight=weight, bias=bias, out=out)
    else:
        yield replace(op, weight=weight, bias=bias, residual=None, out=out)
    yield GatherColumns(x=out, slots=slots, widths=widths, residual=residual, out=op.out)


def column_ranges(count: int, unit: int, ranks: int) -> list[range]:
    """The columns of each rank: whole units, as evenly as they go."""
    bounds = [min(count, -(-count // unit) * rank // ranks * unit) for rank in range(ranks + 1)]
    return [range(first, last) for first, last in pairwise(bounds)]


def _made(op: Op, ep: int, rank: int) -> Iterator[Op]:
    if not has_experts(op):
        yield op
        return
    count = op.weight.matrices
    if count < ep:
        raise UsageError(f"expert parallel {ep}: a layer has {count} experts")
    mine = subtree(segments_of(count, unit=1), ep, rank)
    weight, bias, part = op.weight.cut(experts=mine), _cut(op.bias, mine), RankPart(mine.start, count)
    if isinstance(op, ExpertGatedLinear):
        yield replace(op, weight=weight, bias=bias, part=part)
        return
    each = SEGMENTS // ep
    segments = op.segments[rank * each : (rank + 1) * each]
    out = replace(op.out, name=f"{op.out.name}.part")
    yield replace(op, weight=weight, bias=bias, part=part, segments=segments, residual=None, out=out)
    yield AllReduce(x=out, ranks=ep, residual=op.residual, out=op.out)


def has_experts(op: Op) -> TypeGuard[ExpertGatedLinear | ExpertLinear]:
    """Whether the op has a matrix for each of several experts."""
    return isinstance(op, ExpertGatedLinear | ExpertLinear) and op.weight.matrices > 1


def _cut(bias: Weight | None, mine: range) -> Weight | None:
    return None if bias is None else bias.cut(experts=mine)
