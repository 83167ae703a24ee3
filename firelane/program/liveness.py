"""Places every value of a Program in one arena: values that are never alive together may share bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from firelane.program.program import Program
from firelane.program.values import Rows, Value

ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class ArenaPlacement:
    """Byte offsets of all values in an arena of `nbytes`; each offset is a multiple of 64."""

    offsets: Mapping[Value, int]
    nbytes: int


@dataclass(frozen=True)
class Life:
    """A value is alive from the op that makes it to the last op that reads it, both included: so an op's
    output never overlaps its inputs."""

    value: Value
    first: int
    last: int
    nbytes: int

    def meets(self, other: Life) -> bool:
        return self.first <= other.last and other.first <= self.last


def lives(program: Program, nbytes: Callable[[Value], int], *, extra_ops: int = 0) -> list[Life]:
    """The life of each value, in order of making; it lasts `extra_ops` ops longer than the last one that
    names it."""
    last = {v: i + extra_ops for i, op in enumerate(program.ops) for v in (*op.outputs, *op.inputs)}
    return [Life(v, i, last[v], nbytes(v)) for i, op in enumerate(program.ops) for v in op.outputs]


def place(
    program: Program,
    *,
    row_bytes: Callable[[Value], int],
    max_rows: Mapping[Rows, int],
    extra_ops: int = 0,
) -> ArenaPlacement:
    """Offsets for `max_rows` rows of each kind, `row_bytes` from one row of a value to the next. extra_ops:
    for which a value stays in place behind its last reader, where a backend reads an op's inputs later.

    First fit in order of decreasing size (a greedy interval colouring): each value goes to the lowest gap
    among those placed before that are alive at the same time.
    """

    def nbytes(value: Value) -> int:
        size = row_bytes(value) * max_rows[value.rows]
        return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES

    placed: list[tuple[Life, int]] = []
    for life in sorted(
        lives(program, nbytes, extra_ops=extra_ops), key=lambda item: (-item.nbytes, item.first)
    ):
        placed.append((life, _lowest_gap(life, placed)))
    return ArenaPlacement(
        offsets={life.value: at for life, at in placed},
        nbytes=max((at + life.nbytes for life, at in placed), default=0),
    )


def _lowest_gap(life: Life, placed: list[tuple[Life, int]]) -> int:
    at = 0
    for start, end in sorted((s, s + other.nbytes) for other, s in placed if life.meets(other)):
        if at + life.nbytes <= start:
            break
        at = max(at, end)
    return at
