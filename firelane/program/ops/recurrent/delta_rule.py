"""DeltaRule: linear attention whose state is corrected, not merely added to (Yang et al., "Gated Delta
Networks", 2024; Kimi team, "Kimi Linear", 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import F32, Op
from firelane.program.ops.gated import sigmoid
from firelane.program.state import StateLayer
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

L2_EPS = np.float32(1e-6)


@dataclass(frozen=True, kw_only=True)
class DeltaShape:
    """heads heads in groups of heads // key_heads share one of key_heads queries and keys, key_dim wide; each
    has values of its own, value_dim wide. by_channel: whether each of a head's key_dim channels decays by
    itself."""

    key_heads: int
    heads: int
    key_dim: int
    value_dim: int
    by_channel: bool = False

    def __post_init__(self) -> None:
        assert self.heads % self.key_heads == 0, (
            f"{self.heads} heads do not share {self.key_heads} key heads evenly"
        )

    @property
    def group(self) -> int:
        return self.heads // self.key_heads

    @property
    def key_width(self) -> int:
        """Width of all key heads together."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Width of all value heads together."""
        return self.heads * self.value_dim

    @property
    def qkv_width(self) -> int:
        return 2 * self.key_width + self.value_width

    @property
    def decay_width(self) -> int:
        return self.heads * (self.key_dim if self.by_channel else 1)


@dataclass(frozen=True, kw_only=True)
class DeltaRule(Op):
    """qkv rows hold [q heads | k heads | v heads]. For each head, with the state S [key_dim, value_dim],
    zeros before the first token, and q' = q / sqrt(q · q + 1e-6) / sqrt(key_dim), k' = k / sqrt(k · k +
    1e-6):

        S <- exp(g) · S;  S <- S + k' ⊗ sigmoid(beta) (v - Sᵀ k');  out = Sᵀ q'

    g = -exp(a_log) · softplus(decay + dt_bias), or, with a `floor`, floor · sigmoid(exp(a_log) · (decay +
    dt_bias)): one number a head, or one for each of its channels (rows of S). All in float32.

    columns: where the decays, and the betas (heads of them), begin in the rows of their values.
    a_log: [heads]; dt_bias: [decay_width]; all values and weights are F32. State: S of all heads.
    """

    qkv: Value
    decay: Value
    beta: Value
    columns: tuple[int, int] = (0, 0)
    a_log: Weight
    dt_bias: Weight
    shape: DeltaShape
    floor: float | None = None
    out: Value

    def __post_init__(self) -> None:
        s, name = self.shape, f"DeltaRule {self.out.name}"
        assert self.qkv.width == s.qkv_width, f"{name}: qkv {self.qkv.width}, {s}"
        assert self.out.width == s.value_width, f"{name}: out {self.out.width}, {s}"
        for value, column, width in zip(
            (self.decay, self.beta), self.columns, (s.decay_width, s.heads), strict=True
        ):
            assert 0 <= column <= value.width - width, (
                f"{name}: columns {column} to {column + width} of {value.name}, {value.width} wide"
            )
        assert self.a_log.shape == (s.heads,), f"{name}: a_log {self.a_log.shape}"
        assert self.dt_bias.shape == (s.decay_width,), f"{name}: dt_bias {self.dt_bias.shape}"
        operands = (self.qkv, self.decay, self.beta, self.out, *self.weights)
        assert all(operand.dtype is DType.F32 for operand in operands), f"{name}: all is F32"

    @property
    def states(self) -> tuple[StateLayer, ...]:
        s = self.shape
        return (StateLayer(self.out.name, (s.heads, s.key_dim, s.value_dim)),)

    def cost(self, shape: StepShape) -> Cost:
        s, (state,) = self.shape, self.states
        numbers = s.heads * s.key_dim * s.value_dim
        return Cost(
            flops=8.0 * shape.rows(self.qkv.rows) * numbers,
            weight_bytes=float(sum(w.nbytes for w in self.weights)),
            kv_bytes=2.0 * shape.sequences * state.nbytes,
        )

    def reference(self, step: ReferenceStep) -> None:
        s, (state,) = self.shape, self.states
        q, k, v = np.split(step.read(self.qkv), [s.key_width, 2 * s.key_width], axis=1)
        q, k = self._unit(q) / np.sqrt(np.float32(s.key_dim)), self._unit(k)
        v = v.reshape(-1, s.heads, s.value_dim)
        decay, beta = np.exp(self._decay(step)), self._beta(step)
        out = np.empty_like(v)
        for chunk in step.chunks:
            kept = step.read_state(state, chunk)
            for t in chunk.rows:
                kept = kept * decay[t]
                delta = beta[t] * (v[t] - np.einsum("hkv,hk->hv", kept, k[t]))
                kept = kept + k[t][:, :, None] * delta[:, None, :]
                out[t] = np.einsum("hkv,hk->hv", kept, q[t])
            step.write_state(state, chunk, kept)
        step.write(self.out, out.reshape(len(out), -1))

    def _unit(self, x: F32) -> F32:
        """Queries or keys scaled to length one: float32 [T, heads, key_dim], one for each head."""
        s = self.shape
        x = x.reshape(-1, s.key_heads, s.key_dim)
        unit = x / np.sqrt(np.sum(x * x, axis=-1, keepdims=True) + L2_EPS)
        return np.repeat(unit, s.group, axis=1)

    def _decay(self, step: ReferenceStep) -> F32:
        """g: float32 [T, heads, key_dim or 1, 1]."""
        s, first = self.shape, self.columns[0]
        raw = step.read(self.decay)[:, first : first + s.decay_width] + step.weight(self.dt_bias)
        raw = raw.reshape(len(raw), s.heads, -1, 1)
        speed = np.exp(step.weight(self.a_log))[:, None, None]
        if self.floor is not None:
            return np.float32(self.floor) * sigmoid(speed * raw)
        return -speed * np.logaddexp(np.float32(0), raw)

    def _beta(self, step: ReferenceStep) -> F32:
        """float32 [T, heads, 1], from 0 to 1."""
        first = self.columns[1]
        return sigmoid(step.read(self.beta)[:, first : first + self.shape.heads])[:, :, None]
