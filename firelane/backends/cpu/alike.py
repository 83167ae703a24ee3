"""Programs of ranks made alike: what differs between the ranks of a stage is given when they start, so that
one compiled library is that of all of them.

Ranks of one stage run the same ops on parts of equal size, as a rule: they differ in where their parts begin,
and the first of them draws. Where sizes differ, a rank has a library of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops import Embed, ExpertGatedLinear, ExpertLinear, Gather, Op, Sample
from firelane.program.program import Program
from firelane.program.values import Value


def alike(program: Program) -> Program:
    """The program with the ops of the first rank of its stage: where logits are gathered they can be read,
    and are drawn from. op_parts() says that this rank does not."""
    return replace(program, ops=tuple(made for op in program.ops for made in _alike(op)))


def _alike(op: Op) -> Iterator[Op]:
    if not isinstance(op, Gather) or op.out is not None:
        yield op
        return
    out = Value(name=op.name, width=sum(op.widths), dtype=op.x.dtype, rows=op.x.rows)
    yield replace(op, out=out)
    yield Sample(logits=out)


def op_parts(program: Program) -> NDArray[np.int32]:
    """[ops, 2]: what this rank has of each op, as csrc/context.h, OpPart."""
    draws = not any(isinstance(op, Gather) and op.rank for op in program.ops)
    return np.array([_part(op, draws) for op in program.ops], np.int32)


def _part(op: Op, draws: bool) -> tuple[int, int]:
    match op:
        case Embed(part=part, table=table):
            return part.first if part else 0, table.rows
        case ExpertGatedLinear(part=part, weight=weight) | ExpertLinear(part=part, weight=weight):
            return part.first if part else 0, weight.matrices
        case Sample():
            return 0, int(draws)
        case _:
            return 0, 0
