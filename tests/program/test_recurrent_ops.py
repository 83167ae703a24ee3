"""Gated, ShortConv and DeltaRule: references against torch and transformers, chunks, snapshots, costs,
refused shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn
from transformers.models.glm5_next.modeling_glm5_next import recurrent_kimi_delta_attention
from transformers.models.granitemoehybrid.modeling_granitemoehybrid import mamba2_chunk_scan
from transformers.models.qwen3_next.modeling_qwen3_next import torch_recurrent_gated_delta_rule

from firelane.program.ops import (
    DeltaRule,
    DeltaShape,
    Gated,
    Op,
    RMSNorm,
    ShortConv,
    StateShape,
    StateSpace,
)
from firelane.program.ops.gated import Activation
from firelane.program.reference_step import ReferenceChunk, ReferenceStep
from firelane.program.values import DType, StepShape, Value
from tests.program.test_reference import random, step_with, value, weight

TOKENS = 9
SHAPE = DeltaShape(key_heads=2, heads=6, key_dim=8, value_dim=5)
BY_CHANNEL = DeltaShape(key_heads=3, heads=3, key_dim=8, value_dim=8, by_channel=True)
FUNCTIONS: dict[Activation, Any] = {
    "sigmoid": torch.sigmoid,
    "silu": fn.silu,
    "gelu_tanh": lambda x: fn.gelu(x, approximate="tanh"),
    "none": lambda x: x,
}


def run(op: Op, x: dict[Value, np.ndarray], start: int = 0, **fields: Any) -> ReferenceStep:
    """The op's step, from states of NaN."""
    weights = {name: array for name, array in fields.items() if isinstance(array, np.ndarray)}
    step = step_with(x, start, **weights)
    step.states = fields.get("states") or states_of(op)
    op.reference(step)
    return step


def states_of(op: Op) -> dict[str, np.ndarray]:
    return {s.name: np.full((4, *s.shape), np.nan, np.float32) for s in op.states}


@pytest.mark.parametrize("act", FUNCTIONS)
def test_gated(act: Activation) -> None:
    op = Gated(x=value("x", 8), gate=value("gate", 9), act=act, column=3, out=value("out", 6))
    x, gate = random(TOKENS, 8), 30 * random(TOKENS, 9)
    expected = torch.tensor(x[:, :6]) * FUNCTIONS[act](torch.tensor(gate[:, 3:]))
    found = run(op, {op.x: x, op.gate: gate}).read(op.out)
    rounding = 2**-23 * np.abs(x[:, :6] * gate[:, 3:])  # of a sigmoid near 0, times what it multiplies
    assert (np.abs(found - expected.numpy()) <= 1e-6 + 1e-5 * np.abs(expected.numpy()) + rounding).all()


def test_norm_of_groups_is_that_of_each() -> None:
    op = RMSNorm(x=value("x", 12), weight=weight("w", 12), eps=1e-5, groups=3, out=value("out", 12))
    x, w = random(TOKENS, 12), random(12)
    expected = fn.rms_norm(torch.tensor(x).reshape(-1, 3, 4), (4,), eps=1e-5).reshape(-1, 12).numpy() * w
    np.testing.assert_allclose(run(op, {op.x: x}, w=w).read(op.out), expected, rtol=1e-5, atol=1e-6)


def conv(**fields: Any) -> ShortConv:
    given = {"x": value("x", 7), "taps": 4, "weight": weight("w", 20), "out": value("out", 5)}
    return ShortConv(**{**given, **fields})


@pytest.mark.parametrize("act", ["silu", "none"])
def test_convolution_of_each_channel(act: Activation) -> None:
    op = conv(bias=weight("b", 5), act=act)
    x, w, b = random(TOKENS, 7), random(4, 5), random(5)
    found = run(op, {op.x: x}, w=w.reshape(-1), b=b).read(op.out)
    channels = torch.tensor(x[:, :5].T[None])
    expected = fn.conv1d(channels, torch.tensor(w.T[:, None]), torch.tensor(b), padding=3, groups=5)
    expected = FUNCTIONS[act](expected[0, :, :TOKENS].T).numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def delta(shape: DeltaShape = SHAPE, **fields: Any) -> DeltaRule:
    given = {
        "qkv": value("qkv", shape.qkv_width),
        "decay": value("decay", 2 + shape.decay_width),
        "beta": value("beta", 1 + shape.heads),
        "columns": (2, 1),
        "a_log": weight("a", shape.heads),
        "dt_bias": weight("dt", shape.decay_width),
        "shape": shape,
        "out": value("out", shape.value_width),
    }
    return DeltaRule(**{**given, **fields})


def inputs_of(op: DeltaRule) -> dict[Value, np.ndarray]:
    return {v: random(TOKENS, v.width) for v in (op.qkv, op.decay, op.beta)}


def weights_of(op: DeltaRule) -> dict[str, np.ndarray]:
    return {"a": random(op.shape.heads) - 1, "dt": random(op.shape.decay_width)}


def oracle(op: DeltaRule, x: dict[Value, np.ndarray], w: dict[str, np.ndarray]) -> np.ndarray:
    """By transformers."""
    s = op.shape
    q, k, v = (torch.tensor(part)[None] for part in np.split(x[op.qkv], [s.key_width, 2 * s.key_width], 1))
    raw = torch.tensor(x[op.decay][:, 2:] + w["dt"]).reshape(TOKENS, s.heads, -1)
    speed = torch.exp(torch.tensor(w["a"]))[:, None]
    g = -speed * fn.softplus(raw) if op.floor is None else op.floor * torch.sigmoid(speed * raw)
    rule = recurrent_kimi_delta_attention if s.by_channel else torch_recurrent_gated_delta_rule
    out, _ = rule(
        q.reshape(1, TOKENS, s.key_heads, -1),
        k.reshape(1, TOKENS, s.key_heads, -1),
        v.reshape(1, TOKENS, s.heads, -1),
        g=(g if s.by_channel else g[..., 0])[None],
        beta=torch.sigmoid(torch.tensor(x[op.beta][:, 1:]))[None],
        initial_state=None,
        output_final_state=False,
        use_qk_l2norm_in_kernel=True,
    )
    return out.reshape(TOKENS, -1).numpy()


@pytest.mark.parametrize("floor", [None, -5.0])
@pytest.mark.parametrize("shape", [SHAPE, BY_CHANNEL], ids=["by head", "by channel"])
def test_delta_rule(shape: DeltaShape, floor: float | None) -> None:
    op = delta(shape, floor=floor)
    x, w = inputs_of(op), weights_of(op)
    np.testing.assert_allclose(run(op, x, **w).read(op.out), oracle(op, x, w), rtol=1e-4, atol=1e-5)


SPACE = StateShape(heads=6, groups=2, head_dim=5, state_dim=8)


def space(**fields: Any) -> StateSpace:
    given = {
        "xbc": value("xbc", SPACE.xbc_width),
        "dt": value("dt", 2 + SPACE.heads),
        "column": 2,
        "a_log": weight("a", SPACE.heads),
        "dt_bias": weight("dt", SPACE.heads),
        "skip": weight("d", SPACE.heads),
        "shape": SPACE,
        "out": value("out", SPACE.width),
    }
    return StateSpace(**{**given, **fields})


@pytest.mark.parametrize("limits", [(0.0, float("inf")), (0.3, 0.9)], ids=str)
def test_state_space(limits: tuple[float, float]) -> None:
    """By transformers."""
    op, s = space(limits=limits), SPACE
    x = {v: random(TOKENS, v.width) for v in (op.xbc, op.dt)}
    w = {name: random(s.heads) for name in ("a", "dt", "d")}
    parts = np.split(x[op.xbc], [s.width, s.width + s.groups * s.state_dim], axis=1)
    numbers, b, c = (torch.tensor(part)[None] for part in parts)
    expected = mamba2_chunk_scan(
        numbers.reshape(1, TOKENS, s.heads, -1),
        torch.tensor(x[op.dt][None, :, 2:]),
        -torch.exp(torch.tensor(w["a"])),
        b.reshape(1, TOKENS, s.groups, -1),
        c.reshape(1, TOKENS, s.groups, -1),
        chunk_size=4,
        D=torch.tensor(w["d"]),
        dt_bias=torch.tensor(w["dt"]),
        dt_softplus=True,
        dt_limit=limits,
    )
    expected = (expected[0] if isinstance(expected, tuple) else expected).reshape(TOKENS, -1).numpy()
    np.testing.assert_allclose(run(op, x, **w).read(op.out), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "op", [delta(), delta(BY_CHANNEL), space(), conv()], ids=["head", "channel", "space", "conv"]
)
def test_steps_after_each_other_are_one(op: DeltaRule | StateSpace | ShortConv) -> None:
    """Whatever the chunks, of one token, of fewer than the convolution sees, or of more."""
    if isinstance(op, DeltaRule):
        x, w = inputs_of(op), weights_of(op)
    elif isinstance(op, StateSpace):
        x = {v: random(TOKENS, v.width) for v in (op.xbc, op.dt)}
        w = {name: random(SPACE.heads) for name in ("a", "dt", "d")}
    else:
        x, w = {op.x: random(TOKENS, 7)}, {"w": random(20)}
    whole = run(op, x, **w)
    states, at, parts = states_of(op), 0, list[np.ndarray]()
    for length in (1, 2, 1, 5):
        part = {v: array[at : at + length] for v, array in x.items()}
        parts.append(run(op, part, at, states=states, **w).read(op.out))
        at += length
    np.testing.assert_allclose(np.concatenate(parts), whole.read(op.out), rtol=1e-6, atol=1e-6)
    (state,) = op.states
    np.testing.assert_allclose(states[state.name][1], whole.states[state.name][1], rtol=1e-6)


def test_a_snapshot_is_read_and_stays() -> None:
    op = conv()
    x, w = {op.x: random(TOKENS, 7)}, random(20)
    step = step_with(x, w=w)
    step.states = states_of(op)
    (state,) = op.states
    chunk = ReferenceChunk(range(TOKENS), 1, 3, 2)
    step.states[state.name][3] = 5
    kept = step.read_state(state, chunk)
    step.write_state(state, chunk, kept + 1)
    assert [set(step.states[state.name][i].ravel()) for i in (1, 2, 3)] == [{6}, {6}, {5}]


def test_costs_count_what_is_kept_twice() -> None:
    """It is read, and written."""
    shape = StepShape(tokens=3, outputs=2, attended=9, context=40, sequences=2)
    op, state = delta(), SHAPE.heads * SHAPE.key_dim * SHAPE.value_dim
    assert op.cost(shape).kv_bytes == 2 * 2 * 4 * state
    assert op.cost(shape).flops == 8 * 3 * state
    assert conv().cost(shape).kv_bytes == 2 * 2 * 4 * 3 * 5


INTEGERS = value("out", 5, DType.I32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: conv(taps=1), "1 taps"),
        (lambda: conv(weight=weight("w", 15)), "weight"),
        (lambda: conv(x=value("x", 4)), "5 of x 4"),
        (lambda: conv(bias=weight("b", 4)), "bias"),
        (lambda: conv(out=replace(INTEGERS, dtype=DType.BF16)), "F32"),
        (lambda: delta(qkv=value("qkv", 3)), "qkv 3"),
        (lambda: delta(columns=(3, 1)), "columns 3 to 9 of decay, 8 wide"),
        (lambda: delta(columns=(2, -1)), "columns -1"),
        (lambda: delta(a_log=weight("a", 2)), "a_log"),
        (lambda: delta(dt_bias=weight("a", 2)), "dt_bias"),
        (lambda: delta(out=value("out", 3)), "out 3"),
        (lambda: space(xbc=value("xbc", 3)), "xbc 3"),
        (lambda: space(column=3), "dt 8 from 3 on"),
        (lambda: space(skip=weight("d", 2)), "each of 6 heads"),
        (lambda: space(limits=(1.0, 0.5)), "limits"),
        (lambda: space(out=value("out", 3)), "out 3"),
        (lambda: StateShape(heads=6, groups=4, head_dim=8, state_dim=8), "evenly"),
        (lambda: DeltaShape(key_heads=4, heads=6, key_dim=8, value_dim=8), "evenly"),
        (lambda: Gated(x=value("x", 4), gate=value("g", 5), act="none", out=INTEGERS), "of x 4"),
        (lambda: Gated(x=value("x", 5), gate=value("g", 5), act="none", column=1, out=INTEGERS), "1 to 6"),
        (lambda: Gated(x=value("x", 5), gate=value("g", 5), act="none", out=INTEGERS), "integers"),
        (
            lambda: RMSNorm(x=value("x", 8), weight=None, eps=1e-5, groups=3, out=value("out", 8)),
            "8 in 3 groups",
        ),
    ],
)
def test_shapes_that_do_not_fit_are_refused(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        make()
