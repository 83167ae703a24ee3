from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.models.registry import load_program
from firelane.program.liveness import ALIGNMENT_BYTES, lives, place
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value
from tests.models.families import FAMILIES
from tests.program.fakes import Fake, fake_program

MAX_ROWS = {Rows.TOKEN: 33, Rows.OUTPUT: 5, Rows.OWN: 17}


def row_bytes(value: Value) -> int:
    return value.width * value.dtype.itemsize


def wide_row_bytes(value: Value) -> int:
    """Return a row's bytes on a backend that keeps bf16 in floats."""
    return 4 * value.width


def size(value: Value) -> int:
    return row_bytes(value) * MAX_ROWS[value.rows]


def check(program: Program, extra_ops: int = 0) -> int:
    """Asserts that no two values that are alive together overlap; returns the arena's size."""
    placement = place(program, row_bytes=row_bytes, max_rows=MAX_ROWS, extra_ops=extra_ops)
    for life in lives(program, size, extra_ops=extra_ops):
        assert placement.offsets[life.value] % ALIGNMENT_BYTES == 0
        assert placement.offsets[life.value] + life.nbytes <= placement.nbytes
    for a, b in combinations(lives(program, size, extra_ops=extra_ops), 2):
        if a.first <= b.last and b.first <= a.last:
            at_a, at_b = placement.offsets[a.value], placement.offsets[b.value]
            assert at_a + a.nbytes <= at_b or at_b + b.nbytes <= at_a, (a.value.name, b.value.name)
    return placement.nbytes


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Random chains: each op makes one value from up to three earlier ones."""
    ops: list[Fake] = []
    made: list[Value] = []
    for i in range(draw(st.integers(1, 20))):
        rows, dtype = draw(st.sampled_from(Rows)), draw(st.sampled_from([DType.F32, DType.BF16]))
        out = Value(f"v{i}", rows, draw(st.integers(1, 300)), dtype)
        inputs = draw(st.lists(st.sampled_from(made), max_size=3, unique=True)) if made else []
        ops.append(Fake(inputs=tuple(inputs), out=out))
        made.append(out)
    return fake_program(*ops)


@settings(deadline=None)
@given(programs(), st.integers(0, 2))
def test_living_values_never_overlap(program: Program, extra_ops: int) -> None:
    check(program, extra_ops)


def test_a_value_that_lingers_is_not_overwritten_by_the_next_op() -> None:
    a, b, c = (Value(name, Rows.TOKEN, 100, DType.F32) for name in "abc")
    program = fake_program(Fake(inputs=(), out=a), Fake(inputs=(a,), out=b), Fake(inputs=(b,), out=c))
    apart = place(program, row_bytes=row_bytes, max_rows=MAX_ROWS, extra_ops=1)
    assert len(set(apart.offsets.values())) == 3
    assert place(program, row_bytes=row_bytes, max_rows=MAX_ROWS).offsets[c] == apart.offsets[a]


@settings(deadline=None)
@given(programs())
def test_running_in_the_arena_changes_nothing(program: Program) -> None:
    """Each op writes its number over its whole output; every input must still hold its maker's number."""
    placement = place(program, row_bytes=row_bytes, max_rows=MAX_ROWS)
    arena = np.zeros(placement.nbytes, np.uint8)
    maker: dict[Value, int] = {}
    for i, op in enumerate(program.ops):
        out = op.outputs[0]
        arena[placement.offsets[out] :][: size(out)] = maker[out] = i + 1
        for value in (*op.inputs, out):
            assert (arena[placement.offsets[value] :][: size(value)] == maker[value]).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_models(family: str) -> None:
    program = load_program(FAMILIES[family]())
    arena = check(program)
    total = sum(size(v) for op in program.ops for v in op.outputs)
    assert arena < total / 2
    wider = place(program, row_bytes=wide_row_bytes, max_rows=MAX_ROWS)
    assert wider.nbytes >= arena


def test_dead_values_share_space() -> None:
    a, b, c = (Value(n, Rows.TOKEN, 16, DType.F32) for n in "abc")
    program = fake_program(Fake(out=a), Fake(inputs=(a,), out=b), Fake(inputs=(b,), out=c))
    placement = place(program, row_bytes=row_bytes, max_rows=MAX_ROWS)
    assert placement.offsets[a] == placement.offsets[c]
    assert placement.nbytes == 2 * size(a)


def test_empty_program() -> None:
    assert place(fake_program(), row_bytes=row_bytes, max_rows=MAX_ROWS).nbytes == 0
