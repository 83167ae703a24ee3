"""A Program that tells features: numbers of each token row, for a head that drafts to read.

These rewrites take the whole program, before it is cut for ranks. Its draws and weights stay the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from firelane.errors import UnsupportedModelError
from firelane.program.ops import Op, SelectRows, TellFeatures, with_values
from firelane.program.program import Program
from firelane.program.values import Rows, Value


def with_streams(program: Program, layers: Sequence[int]) -> Program:
    """The program that tells, beside each other in this order, the residual streams that enter these layers,
    counted from 0; the number of layers stands for the stream behind the last one. Raises
    UnsupportedModelError where there is no such layer, or the stream is not one row a token."""
    return _telling(program, [_stream(program, layer) for layer in layers])


def with_hidden(program: Program) -> Program:
    """The program that tells the hidden state of every token row: what its head reads, which is else computed
    for output rows alone. Raises UnsupportedModelError for a program without a head."""
    select, behind = _behind_selection(program)
    values, made = {select.out: select.x}, list[Op]()
    for op in behind:
        values |= {value: _of_tokens(value) for value in op.outputs}
        made.append(with_values(op, values))
    assert program.head is not None
    at = program.ops.index(select)
    whole = replace(program, ops=(*program.ops[:at], *made, *program.ops[at:]))
    return _telling(whole, [values[program.head.x]])


def _stream(program: Program, layer: int) -> Value:
    """Raises UnsupportedModelError."""
    last = len(program.streams) - 1
    if not 0 <= layer <= last:
        known = f"they go from 0 to {last}" if last > 0 else "none is known"
        raise UnsupportedModelError(f"{program.name}: there is no stream of layer {layer} to tell: {known}")
    stream = program.streams[layer]
    if not any(stream in (_residual(op), *op.outputs) for op in program.ops if _residual(op)):
        raise UnsupportedModelError(
            f"{program.name}: the stream of layer {layer} is split by hyper-connections: it is not one row a "
            "token, and cannot be told"
        )
    return stream


def _residual(op: Op) -> Value | None:
    """The value that the op adds to."""
    return getattr(op, "residual", None)


def _behind_selection(program: Program) -> tuple[SelectRows, list[Op]]:
    """The op that selects output rows, and those that make what the head reads of them. Raises
    UnsupportedModelError."""
    makers = {value: op for op in program.ops for value in op.outputs}
    behind = list[Op]()
    op = None if program.head is None else makers[program.head.x]
    while op is not None and not isinstance(op, SelectRows):
        behind.insert(0, op)
        rows = [value for value in op.inputs if value.rows is Rows.OUTPUT]
        op = makers[rows[0]] if len(rows) == 1 else None
    if op is None:
        raise UnsupportedModelError(
            f"{program.name}: it has no head of selected rows, and so no hidden states to tell"
        )
    return op, behind


def _of_tokens(value: Value) -> Value:
    return replace(value, name=f"{value.name}.tokens", rows=Rows.TOKEN)


def _telling(program: Program, values: Sequence[Value]) -> Program:
    """The program that tells these values, each as soon as it is made, behind what it tells already."""
    starts = accumulate((value.width for value in values), initial=program.features_out)
    tells: dict[Value, list[Op]] = {}
    for value, first in zip(values, starts, strict=False):
        tells.setdefault(value, []).append(TellFeatures(x=value, first=first))
    ops = list[Op]()
    for op in program.ops:
        ops += [op, *(tell for value in op.outputs for tell in tells.get(value, ()))]
    return replace(program, ops=tuple(ops))
