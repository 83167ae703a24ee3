"""The pass that makes sums independent of the number of ranks: products that ranks may share out add up in
segments, also where there is one rank.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.parallel.cuts import is_row_parallel
from firelane.program.ops import ExpertLinear, Linear, Op
from firelane.program.program import Program
from firelane.program.segments import segments_of


def segmented(program: Program) -> Program:
    """The same program with segments where row-parallel products and expert sums have none yet."""
    made_by = {value: op for op in program.ops for value in op.outputs}
    ops = tuple(_segmented(op, made_by.get(op.inputs[0]) if op.inputs else None) for op in program.ops)
    head = None if program.head is None else ops[program.ops.index(program.head)]
    assert head is None or isinstance(head, Linear)
    return replace(program, ops=ops, head=head)


def _segmented(op: Op, producer: Op | None) -> Op:
    if isinstance(op, ExpertLinear) and not op.segments and op.weight.matrices > 1:
        return replace(op, segments=segments_of(op.weight.matrices, unit=1))
    if isinstance(op, Linear) and not op.segments and is_row_parallel(op, producer):
        return replace(op, segments=segments_of(op.x.width))
    return op
