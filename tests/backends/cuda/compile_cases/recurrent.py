"""Recurrent layers at the shapes of Qwen3-Next, Kimi Linear, Granite 4 H and LFM2."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.recurrent.delta_rule import delta_rule
from firelane.backends.cuda.kernels.recurrent.short_conv import short_conv
from firelane.backends.cuda.kernels.recurrent.state_space import state_space
from firelane.backends.cuda.kernels.rows.gates import gated
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.program.ops import DeltaRule, DeltaShape, Gated, ShortConv, StateShape, StateSpace
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.compile_cases.attention import step_tables
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched

F32 = torch.float32
ROWS, CHUNKS, STATES = 2048, 200, 300
NEXT = DeltaShape(key_heads=16, heads=32, key_dim=128, value_dim=128)
KIMI = DeltaShape(key_heads=32, heads=32, key_dim=128, value_dim=128, by_channel=True)
SMALL = StateShape(heads=128, groups=1, head_dim=64, state_dim=128)
TINY = StateShape(heads=48, groups=1, head_dim=32, state_dim=128)


def cases() -> Iterator[Case]:
    for name, shape, floor in (
        ("Qwen3-Next", NEXT, None),
        ("Kimi Linear", KIMI, None),
        ("floor", KIMI, -5.0),
    ):
        yield Case(name=f"delta rule {name}", launch=delta(shape, floor))
    for name, shape in (("Granite 4 H Small", SMALL), ("Granite 4 H 350M", TINY)):
        yield Case(name=f"state space {name}", launch=space(shape))
    for width, taps, act in ((8192, 4, "silu"), (2048, 3, "none")):
        for launch in convolution(width, taps, act):
            yield Case(name=f"{launch.name} {width} x {taps}", launch=launch, needs=(WIDE_LOADS,))
    for act in ("sigmoid", "silu"):
        yield Case(name=f"gate {act}", launch=gate(act), needs=(WIDE_LOADS,))
    yield Case(name="norm of 32 groups", launch=norm(), needs=(WIDE_LOADS,))


def rows(width: int, dtype: torch.dtype = F32) -> Tensor:
    return untouched(ROWS, width, dtype=dtype)


def value(name: str, width: int, dtype: DType = DType.F32) -> Value:
    return Value(name, Rows.TOKEN, width, dtype)


def vector(name: str, size: int) -> Weight:
    return Weight.stored(name, (size,), DType.F32)


def delta(shape: DeltaShape, floor: float | None):
    op = DeltaRule(
        qkv=value("qkv", shape.qkv_width),
        decay=value("decay", shape.decay_width),
        beta=value("beta", shape.heads),
        a_log=vector("a_log", shape.heads),
        dt_bias=vector("dt_bias", shape.decay_width),
        shape=shape,
        floor=floor,
        out=value("out", shape.value_width),
    )
    (state,) = op.states
    return delta_rule(
        rows(shape.qkv_width),
        rows(shape.decay_width),
        rows(64),
        rows(shape.value_width),
        op=op,
        a_log=untouched(shape.heads, dtype=F32),
        dt_bias=untouched(shape.decay_width, dtype=F32),
        states=untouched(STATES, state.nbytes // 4, dtype=F32),
        tables=step_tables(1, 1024),
        max_chunks=CHUNKS,
    )


def space(shape: StateShape):
    op = StateSpace(
        xbc=value("xbc", shape.xbc_width),
        dt=value("dt", shape.heads),
        a_log=vector("a_log", shape.heads),
        dt_bias=vector("dt_bias", shape.heads),
        skip=vector("skip", shape.heads),
        shape=shape,
        out=value("out", shape.width),
    )
    (state,) = op.states
    return state_space(
        rows(shape.xbc_width),
        rows(128),
        rows(shape.width),
        op=op,
        a_log=untouched(shape.heads, dtype=F32),
        dt_bias=untouched(shape.heads, dtype=F32),
        skip=untouched(shape.heads, dtype=F32),
        states=untouched(STATES, state.nbytes // 4, dtype=F32),
        tables=step_tables(1, 1024),
        max_chunks=CHUNKS,
    )


def convolution(width: int, taps: int, act):
    weight = vector("weight", taps * width)
    op = ShortConv(x=value("x", width), taps=taps, weight=weight, act=act, out=value("out", width))
    return short_conv(
        rows(width),
        rows(width),
        op=op,
        weight=untouched(taps * width, dtype=F32),
        bias=None,
        states=untouched(STATES, (taps - 1) * width, dtype=F32),
        tables=step_tables(1, 1024),
        max_tokens=ROWS,
        max_chunks=CHUNKS,
    )


def gate(act):
    x, out = value("x", 4096), value("out", 4096, DType.BF16)
    op = Gated(x=x, gate=value("gate", 8192), act=act, column=4096, out=out)
    return gated(rows(4096), rows(8192), rows(4096, torch.bfloat16), op=op, **counted())


def norm():
    weight = untouched(4096, dtype=F32)
    return rms_norm(rows(4096), weight, rows(4096), width=4096, groups=32, eps=1e-6, **counted())


def counted():
    return {"counts": untouched(NUM_COUNTS, dtype=torch.int32), "count": TOKENS, "max_rows": ROWS}
