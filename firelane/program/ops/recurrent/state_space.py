"""StateSpace: a linear recurrence whose speed depends on the token (Dao and Gu, "Transformers are SSMs",
2024: Mamba-2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import F32, Op
from firelane.program.state import StateLayer
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class StateShape:
    """heads heads, head_dim wide, each with a state [state_dim, head_dim]; in groups of heads // groups they
    share what is written to states, and what is read from them."""

    heads: int
    groups: int
    head_dim: int
    state_dim: int

    def __post_init__(self) -> None:
        assert self.heads % self.groups == 0, (
            f"{self.heads} heads do not share in {self.groups} groups evenly"
        )

    @property
    def width(self) -> int:
        """Width of all heads together."""
        return self.heads * self.head_dim

    @property
    def xbc_width(self) -> int:
        return self.width + 2 * self.groups * self.state_dim


@dataclass(frozen=True, kw_only=True)
class StateSpace(Op):
    """xbc rows hold [x heads | B groups | C groups]. For each head, with the state S [state_dim, head_dim],
    zeros before the first token, and step = softplus(dt + dt_bias), within `limits`:

        S <- exp(-exp(a_log) · step) · S + B ⊗ step · x;  out = Sᵀ C + skip · x

    column: where the heads' numbers begin in the rows of dt. a_log, dt_bias, skip: [heads]; all values and
    weights are F32. State: S of all heads.
    """

    xbc: Value
    dt: Value
    column: int = 0
    a_log: Weight
    dt_bias: Weight
    skip: Weight
    shape: StateShape
    limits: tuple[float, float] = (0.0, math.inf)
    out: Value

    def __post_init__(self) -> None:
        s, name = self.shape, f"StateSpace {self.out.name}"
        assert self.xbc.width == s.xbc_width, f"{name}: xbc {self.xbc.width}, {s}"
        assert self.out.width == s.width, f"{name}: out {self.out.width}, {s}"
        assert 0 <= self.column <= self.dt.width - s.heads, (
            f"{name}: dt {self.dt.width} from {self.column} on"
        )
        assert all(w.shape == (s.heads,) for w in self.weights), (
            f"{name}: a number for each of {s.heads} heads"
        )
        assert 0 <= self.limits[0] <= self.limits[1], f"{name}: limits {self.limits}"
        operands = (self.xbc, self.dt, self.out, *self.weights)
        assert all(operand.dtype is DType.F32 for operand in operands), f"{name}: all is F32"

    @property
    def states(self) -> tuple[StateLayer, ...]:
        s = self.shape
        return (StateLayer(self.out.name, (s.heads, s.state_dim, s.head_dim)),)

    def cost(self, shape: StepShape) -> Cost:
        s, (state,) = self.shape, self.states
        return Cost(
            flops=6.0 * shape.rows(self.xbc.rows) * s.heads * s.state_dim * s.head_dim,
            weight_bytes=float(sum(w.nbytes for w in self.weights)),
            kv_bytes=2.0 * shape.sequences * state.nbytes,
        )

    def reference(self, step: ReferenceStep) -> None:
        s, (state,) = self.shape, self.states
        x, b, c = np.split(step.read(self.xbc), [s.width, s.width + s.groups * s.state_dim], axis=1)
        x, b, c = x.reshape(-1, s.heads, s.head_dim), self._by_head(b), self._by_head(c)
        speed, steps = np.exp(step.weight(self.a_log)), self._steps(step)
        out = np.empty_like(x)
        for chunk in step.chunks:
            kept = step.read_state(state, chunk)
            for t in chunk.rows:
                added = b[t][:, :, None] * (steps[t][:, None] * x[t])[:, None, :]
                kept = kept * np.exp(-speed * steps[t])[:, None, None] + added
                out[t] = np.einsum("hnp,hn->hp", kept, c[t])
            step.write_state(state, chunk, kept)
        out += step.weight(self.skip)[:, None] * x
        step.write(self.out, out.reshape(len(out), -1))

    def _by_head(self, groups: F32) -> F32:
        s = self.shape
        return np.repeat(groups.reshape(-1, s.groups, s.state_dim), s.heads // s.groups, axis=1)

    def _steps(self, step: ReferenceStep) -> F32:
        """float32 [T, heads]."""
        raw = step.read(self.dt)[:, self.column : self.column + self.shape.heads]
        steps = np.logaddexp(np.float32(0), raw + step.weight(self.dt_bias))
        least, most = self.limits
        return np.minimum(np.maximum(steps, np.float32(least)), np.float32(most)).astype(np.float32)
