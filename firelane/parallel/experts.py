"""Expert parallel: the program of one of several ranks that share the experts by id (Lepikhin et al.,
"GShard", 2020). Routing is on every rank; each adds up the experts that it has, and an all-reduce the ranks.
The segments of the sum are runs of ids: a token's sum has the same bits however many ranks there are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeGuard

from firelane.errors import UsageError
from firelane.parallel.segments import segmented
from firelane.parallel.shard import check_ranks
from firelane.program.ops import AllReduce, ExpertGatedLinear, ExpertLinear, Op
from firelane.program.program import Program
from firelane.program.segments import SEGMENTS, segments_of, subtree
from firelane.program.values import Part, Weight


def experts(program: Program, ep: int, rank: int) -> Program:
    """The program of rank `rank` of `ep`. A layer's one expert, which is a shared one with a gate, stays
    whole. Raises UsageError for a number of ranks that no cut exists for, or that has ranks without an
    expert."""
    check_ranks("expert parallel", ep)
    program = segmented(program)
    if ep == 1:
        return program
    return replace(program, ops=tuple(made for op in program.ops for made in _made(op, ep, rank)))


def _made(op: Op, ep: int, rank: int) -> Iterator[Op]:
    if not has_experts(op):
        yield op
        return
    count = op.weight.matrices
    if count < ep:
        raise UsageError(f"expert parallel {ep}: a layer has {count} experts")
    mine = subtree(segments_of(count, unit=1), ep, rank)
    weight, bias, part = op.weight.cut(experts=mine), _cut(op.bias, mine), Part(mine.start, count)
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
