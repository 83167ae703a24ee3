"""Kernels of recurrent layers in Triton's interpreter: against their references, and the same bits however a
sequence is cut, from a live state or a snapshot."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.recurrent.delta_rule import delta_rule
from firelane.backends.cuda.kernels.recurrent.short_conv import short_conv
from firelane.backends.cuda.kernels.recurrent.state_space import state_space
from firelane.backends.cuda.kernels.rows.gates import gated
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS, StepTables
from firelane.contract import NO_SNAPSHOT, ZERO_STATE
from firelane.program.ops import DeltaRule, DeltaShape, Gated, ShortConv, StateShape, StateSpace
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.rows_harness import assert_untouched, filled, limits, poisoned_tables, rows_of
from tests.program.test_reference import step_with

STATES, SPARE = 6, 2
BOUND = 4e-6


@dataclass(frozen=True)
class Piece:
    """Tokens first .. last - 1 of the one sequence that there is."""

    first: int
    last: int
    slot: int = 0
    state_from: int = ZERO_STATE
    state_save: int = NO_SNAPSHOT
    drafted: int = 0
    state_spare: int = -1


def value(name: str, width: int, dtype: DType = DType.F32) -> Value:
    return Value(name, Rows.TOKEN, width, dtype)


def vector(name: str, size: int) -> Weight:
    return Weight.stored(name, (size,), DType.F32)


@dataclass
class Layer:
    """One op, the numbers of all tokens of a sequence, and a pool of states."""

    op: DeltaRule | StateSpace | ShortConv
    tokens: int = 9
    states: torch.Tensor = field(init=False)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(2)
        (state,) = self.op.states
        self.states = poison(torch.empty(STATES, state.nbytes // 4 + 16))[:, 8:-8]
        values = {v: rng.standard_normal((self.tokens, v.width)).astype(np.float32) for v in self.op.inputs}
        self.values = values
        self.weights = {w.name: rng.standard_normal(w.shape).astype(np.float32) for w in self.op.weights}

    def step(self, pieces: Sequence[Piece]) -> np.ndarray:
        """The rows of the pieces, one behind the other."""
        tables, order = self._tables(pieces), [i for p in pieces for i in range(p.first, p.last)]
        rows = {v: filled(x[order], len(order) + SPARE) for v, x in self.values.items()}
        out = rows_of(len(order) + SPARE, self.op.out.width)
        weights = {name: torch.from_numpy(w) for name, w in self.weights.items()}
        op, states, more = self.op, self.states, {"tables": tables, "max_chunks": len(pieces) + SPARE}
        if isinstance(op, DeltaRule):
            delta_rule(
                *(rows[v] for v in (op.qkv, op.decay, op.beta)), out, op=op, states=states, **weights, **more
            ).run()
        elif isinstance(op, StateSpace):
            state_space(
                *(rows[v] for v in (op.xbc, op.dt)), out, op=op, states=states, **weights, **more
            ).run()
        else:
            for launch in short_conv(
                rows[op.x],
                out,
                op=op,
                states=states,
                weight=weights["weight"],
                bias=weights.get("bias"),
                max_tokens=len(order) + SPARE,
                **more,
            ):
                launch.run()
        assert_untouched(out, len(order), op.out.width)
        return out[: len(order), : op.out.width].numpy()

    def _tables(self, pieces: Sequence[Piece]) -> StepTables:
        tables, token = poisoned_tables(limits()), 0
        for i, p in enumerate(pieces):
            length = p.last - p.first
            record = [p.slot, p.first, length, token, -1, 0]
            record += [p.state_from, p.state_save, p.drafted, p.state_spare]
            tables.chunks[i, : len(record)] = torch.tensor(record, dtype=torch.int32)
            tables.token_chunk[token : token + length] = i
            token += length
        tables.counts[t.CHUNKS], tables.counts[t.TOKENS] = len(pieces), token
        return tables

    def reference(self) -> np.ndarray:
        step = step_with(self.values, **self.weights)
        (state,) = self.op.states
        step.states = {state.name: np.zeros((2, *state.shape), np.float32)}
        self.op.reference(step)
        return step.read(self.op.out)


def delta(shape: DeltaShape, floor: float | None = None) -> DeltaRule:
    every = value("decay", 3 + shape.decay_width)
    return DeltaRule(
        qkv=value("qkv", shape.qkv_width),
        decay=every,
        beta=value("beta", shape.heads),
        columns=(3, 0),
        a_log=vector("a_log", shape.heads),
        dt_bias=vector("dt_bias", shape.decay_width),
        shape=shape,
        floor=floor,
        out=value("out", shape.value_width),
    )


def conv(width: int, taps: int, *, bias: bool = False, act="silu") -> ShortConv:
    return ShortConv(
        x=value("x", width + 5),
        taps=taps,
        weight=vector("weight", taps * width),
        bias=vector("bias", width) if bias else None,
        act=act,
        out=value("out", width),
    )


def space(shape: StateShape, limits: tuple[float, float] = (0.0, math.inf)) -> StateSpace:
    return StateSpace(
        xbc=value("xbc", shape.xbc_width),
        dt=value("dt", shape.heads + 3),
        column=3,
        a_log=vector("a_log", shape.heads),
        dt_bias=vector("dt_bias", shape.heads),
        skip=vector("skip", shape.heads),
        shape=shape,
        limits=limits,
        out=value("out", shape.width),
    )


OPS = {
    "heads share keys": delta(DeltaShape(key_heads=2, heads=4, key_dim=12, value_dim=20)),
    "by channel": delta(DeltaShape(key_heads=1, heads=1, key_dim=16, value_dim=16, by_channel=True)),
    "floor": delta(DeltaShape(key_heads=2, heads=2, key_dim=8, value_dim=5, by_channel=True), floor=-5.0),
    "state space": space(StateShape(heads=4, groups=2, head_dim=20, state_dim=12)),
    "limits": space(StateShape(heads=2, groups=1, head_dim=8, state_dim=16), (0.3, 1.1)),
    "conv": conv(20, 4),
    "conv of two taps": conv(7, 2, bias=True, act="none"),
    "wide conv": conv(1100, 3),
}
EACH = pytest.mark.parametrize("op", OPS.values(), ids=OPS)


@EACH
def test_a_sequence(op: DeltaRule | StateSpace | ShortConv) -> None:
    layer = Layer(op)
    wanted = layer.reference()
    found = layer.step([Piece(0, layer.tokens)])
    assert np.abs(found - wanted).max() <= BOUND * np.abs(wanted).max()


@EACH
def test_the_same_bits_however_it_is_cut(op: DeltaRule | StateSpace | ShortConv) -> None:
    """In other slots beside itself, and from a snapshot, which stays as it is."""
    layer = Layer(op)
    whole = layer.step([Piece(0, 9, slot=3)])
    first = layer.step([Piece(0, 2, slot=1), Piece(0, 4, state_save=5)])
    np.testing.assert_array_equal(first, whole[[0, 1, 0, 1, 2, 3]])
    snapshot = layer.states[5].clone()
    assert torch.equal(layer.states[0], snapshot)
    for _ in range(2):
        mixed = layer.step([Piece(4, 5, state_from=0), Piece(2, 3, slot=1, state_from=1)])
        np.testing.assert_array_equal(mixed, whole[[4, 2]])
        found = [layer.step([Piece(i, i + 1, state_from=0)])[0] for i in range(5, 9)]
        np.testing.assert_array_equal(found, whole[5:])
        assert torch.equal(layer.states[0], layer.states[3])
        layer.step([Piece(0, 2, slot=1)])
        again = layer.step([Piece(4, 6, state_from=5)])
        np.testing.assert_array_equal(again, whole[4:6])
        assert torch.equal(layer.states[5], snapshot)
        layer.step([Piece(0, 4)])
    assert layer.states[[2, 4]].isnan().all(), "wrote to states of others"


@EACH
@pytest.mark.parametrize("known", [1, 2, 3])
def test_the_state_behind_a_draft_is_spare(op: DeltaRule | StateSpace | ShortConv, known: int) -> None:
    """Each of two goes on from its live state, and from the spare one, which is written again."""
    layer = Layer(op)
    whole = layer.step([Piece(0, 9, slot=3)])
    layer.step([Piece(0, 2), Piece(0, 2, slot=1)])
    draft = {"drafted": 2, "state_from": 0, "state_save": 5, "state_spare": 4}
    both = layer.step([Piece(2, 4 + known, **draft), Piece(2, 3, slot=1, state_from=1)])
    np.testing.assert_array_equal(both, whole[[*range(2, 4 + known), 2]])
    assert torch.equal(layer.states[0], layer.states[5])
    np.testing.assert_array_equal(layer.step([Piece(2 + known, 8, state_from=0)]), whole[2 + known : 8])
    layer.states[0] = layer.states[5]
    draft = {"drafted": 1, "state_from": 4, "state_spare": 4}
    found = layer.step([Piece(4 + known, 6 + known, **draft), Piece(3, 5, slot=1, state_from=1)])
    np.testing.assert_array_equal(found, whole[[*range(4 + known, 6 + known), 3, 4]])
    for state, first in ((0, 5 + known), (4, 6 + known)):
        rest = layer.step([Piece(first, 9, slot=3, state_from=state)]) if first < 9 else whole[9:]
        np.testing.assert_array_equal(rest, whole[first:])
    assert layer.states[2].isnan().all(), "wrote to states of others"


@EACH
def test_no_chunks_write_nothing(op: DeltaRule | StateSpace | ShortConv) -> None:
    layer = Layer(op)
    layer.step([])
    assert layer.states.isnan().all()


@pytest.mark.parametrize("act", ["sigmoid", "silu", "gelu_tanh", "none"])
@pytest.mark.parametrize("dtype", [DType.BF16, DType.F32], ids=["bf16", "f32"])
def test_gates(act, dtype: DType) -> None:
    op = Gated(x=value("x", 90), gate=value("gate", 120), act=act, column=37, out=value("out", 80, dtype))
    rng, rows = np.random.default_rng(1), 3
    x, gate = (rng.standard_normal((rows, v.width)).astype(np.float32) * 4 for v in (op.x, op.gate))
    gate[0, 40:42] = 300, -300
    step = step_with({op.x: x, op.gate: gate})
    op.reference(step)
    torch_dtype = torch.bfloat16 if dtype is DType.BF16 else torch.float32
    out, counts = rows_of(5, 80, torch_dtype), torch.full((NUM_COUNTS,), rows, dtype=torch.int32)
    gated(filled(x, 5), filled(gate, 5), out, op=op, counts=counts, count=TOKENS, max_rows=5).run()
    wanted, bound = step.read(op.out), 2.0**-8 if dtype is DType.BF16 else 1e-6
    assert np.abs(out[:rows, :80].float().numpy() - wanted).max() <= bound * np.abs(wanted).max()
    assert_untouched(out, rows, 80)


def test_norms_of_groups() -> None:
    rng, rows, groups, size = np.random.default_rng(1), 3, 5, 20
    x = rng.standard_normal((rows, groups * size)).astype(np.float32)
    weight = rng.standard_normal(groups * size).astype(np.float32)
    out, counts = rows_of(5, groups * size), torch.full((NUM_COUNTS,), rows, dtype=torch.int32)
    rms_norm(
        filled(x, 5),
        torch.from_numpy(weight),
        out,
        width=groups * size,
        groups=groups,
        eps=1e-6,
        counts=counts,
        count=TOKENS,
        max_rows=5,
    ).run()
    parts = x.reshape(rows, groups, size)
    wanted = (parts / np.sqrt((parts**2).mean(-1, keepdims=True) + 1e-6)).reshape(rows, -1) * weight
    np.testing.assert_allclose(out[:rows, : groups * size].numpy(), wanted, rtol=1e-5)
    assert_untouched(out, rows, groups * size)
