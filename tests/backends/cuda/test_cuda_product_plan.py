"""Which products may leave parts to the op behind them, and what that op is then given."""

from __future__ import annotations

import pytest

from firelane.backends.cuda.lowering.buckets import Bucket
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.program.ops import Cast, Embed, Linear, Op, RMSNorm, TellFeatures
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value, Weight

WIDTH = 64
ONE_TOKEN = Bucket(tokens=1, chunks=1, rows=1, decode=True)


def value(name: str) -> Value:
    return Value(name, Rows.TOKEN, WIDTH, DType.F32)


STREAM, MADE, OTHER, END = map(value, ("stream", "made", "other", "end"))


def program(*ops: Op, **options: float) -> Program:
    """A stream, a product of it, and the ops."""
    table, matrix = (Weight.stored(name, (WIDTH, WIDTH), DType.F32) for name in ("table", "matrix"))
    before = Embed(table=table, out=STREAM), Linear(x=STREAM, weight=matrix, out=MADE, **options)
    return Program(name="any", vocab_size=WIDTH, max_model_len=8, ops=(*before, *ops))


def norm(x: Value, residual: Value | None = None) -> RMSNorm:
    return RMSNorm(x=x, weight=None, eps=1e-5, residual=residual, out=END)


PROGRAMS = {
    "to a norm": (program(norm(MADE)), True),
    "to a norm behind a block": (program(norm(MADE, STREAM)), True),
    "to a cast": (program(Cast(x=MADE, out=END)), True),
    "to what is told": (program(TellFeatures(x=MADE, first=0)), True),
    "scaled": (program(norm(MADE), scale=0.5), True),
    "capped": (program(norm(MADE), softcap=3.0), False),
    "as the residual": (program(norm(STREAM, MADE)), False),
    "as both": (program(norm(MADE, MADE)), False),
    "not to the next op": (program(Cast(x=STREAM, out=OTHER), norm(MADE)), False),
}


@pytest.mark.parametrize(("made", "may"), PROGRAMS.values(), ids=PROGRAMS)
def test_parts_are_left_to_an_op_that_adds_them_up(made: Program, may: bool) -> None:
    plan = ProductPlan(program=made, is_coded=lambda _: False)
    (product,) = made.products
    assert plan.config(product, ONE_TOKEN).parts is may
