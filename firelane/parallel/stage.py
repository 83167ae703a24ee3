"""Pipeline parallel: the program of one of several stages, each of which has a run of the ops (Huang et al.,
"GPipe", 2019). What is alive where two of them meet, the residual stream as a rule, is sent from one to the
next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from firelane.parallel.balance import cut, live_values, units
from firelane.program.cache import grouping_of
from firelane.program.ops import Op, Receive, Send
from firelane.program.program import Program
from firelane.program.values import StepShape

DECODE = StepShape(tokens=8, outputs=8, attended=8 * 1024, context=8 * 1024, sequences=8)
"""A step that stages are cut for, where nothing else is said: eight sequences, a thousand tokens each."""
FLOPS_A_BYTE = 16.0
"""FLOPs of a device in the time that a byte takes from memory, about, where no device is described."""


def stage(program: Program, pp: int, rank: int, *, costs: Sequence[float] | None = None) -> Program:
    """The program of stage `rank` of `pp`. costs: of each of balance.units(program), in any unit; by default
    of a step of decode. Comes before shard() and experts(), so that the ranks of a stage are cut in one
    place. Raises UsageError where there are more stages than units."""
    if pp == 1:
        return program
    runs = units(program)
    mine = cut(unit_costs(program) if costs is None else costs, pp)[rank]
    ops = range(runs[mine.start].start, runs[mine.stop - 1].stop)
    live = live_values(program)
    received = () if rank == 0 else live[ops.start]
    sent = () if rank == pp - 1 else live[ops.stop]
    own = program.ops[ops.start : ops.stop]
    return replace(
        program,
        ops=(*(Receive(out=value) for value in received), *own, *(Send(x=value) for value in sent)),
        head=program.head if program.head in own else None,
        streams=(),
        grouping=grouping_of(program.cache_groups),
    )


def unit_costs(program: Program, shape: StepShape = DECODE) -> list[float]:
    """Cost of each of balance.units(program), in bytes."""
    return [sum(_cost(op, shape) for op in program.ops[unit.start : unit.stop]) for unit in units(program)]


def _cost(op: Op, shape: StepShape) -> float:
    cost = op.cost(shape)
    return cost.weight_bytes + cost.kv_bytes + cost.flops / FLOPS_A_BYTE
