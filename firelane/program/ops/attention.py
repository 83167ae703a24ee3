"""Attention: softmax attention over the paged cache (Vaswani et al., 2017; Ainslie et al., "GQA", 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.contract.span import CAUSAL, Bidirectional, Span, last_seen, reach
from firelane.program.ops.base import Op
from firelane.program.ops.heads import HeadShape
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import CachedRows, ReferenceStep


@dataclass(frozen=True, kw_only=True)
class Attention(Op):
    """out = softmax(scale * q · Kᵀ) · V for each head, over the positions that `span` sees. Scores and
    sums in float32; exp(score - max), times the scale of V where the cache has codes, is rounded to out's
    dtype before the product with V, and the product is divided by the sum of the unrounded exponentials. With
    a `softcap` (Gemma 2, 2024), scores are softcap * tanh(score / softcap). `sinks` [heads], if any, are one
    more score of each head, of a position without a value (Xiao et al., "Attention Sinks", 2023; gpt-oss,
    2025). With `indices`, I32 [T, k], a token reads the positions that its row has there alone: see
    IndexTopK."""

    q: Value
    layer: int
    shape: HeadShape
    scale: float
    span: Span = CAUSAL
    softcap: float = 0.0
    sinks: Weight | None = None
    indices: Value | None = None
    out: Value

    def __post_init__(self) -> None:
        assert (self.q.width, self.out.width) == (self.shape.q_width, self.shape.out_width), (
            f"Attention {self.layer}: q {self.q.width}, out {self.out.width}"
        )
        assert self.q.dtype is self.out.dtype, f"Attention {self.layer}: q and out differ in dtype"
        assert self.sinks is None or self.sinks.shape == (self.shape.heads,), (
            f"Attention {self.layer}: sinks {self.sinks.shape}"
        )
        assert self.indices is None or (self.indices.dtype is DType.I32 and self.span == CAUSAL), (
            f"Attention {self.layer}: indices of {self.span}"
        )

    @property
    def budget(self) -> int | None:
        """The most positions that a token reads; None: no limit but the sequence's length."""
        seen = reach(self.span)
        return seen if self.indices is None else self.indices.width

    def cost(self, shape: StepShape) -> Cost:
        s, attended, context = self.shape, shape.attended, shape.context
        seen = self.budget
        if isinstance(self.span, Bidirectional):
            attended *= 2
        if seen is not None:
            attended = min(attended, shape.tokens * seen)
            context = min(context, shape.sequences * seen + shape.tokens)
        read = s.cached_bytes(self.out.dtype)
        return Cost(flops=2.0 * attended * (s.q_width + s.out_width), kv_bytes=float(context * read))

    def reference(self, step: ReferenceStep) -> None:
        s = self.shape
        q = step.read(self.q).reshape(-1, s.kv_heads, s.group, s.head_dim)
        out = np.empty((*q.shape[:-1], s.v_dim), np.float32)
        for t, (slot, position) in enumerate(zip(step.slots, step.positions, strict=True)):
            newest = int(step.positions[step.slots == slot].max())
            first, last = self.span.first(int(position)), last_seen(self.span, int(position), newest)
            cached = step.read_cache(self.layer, int(slot), first, last + 1)
            if self.indices is not None:
                cached = _at(cached, step.read(self.indices)[t, : last + 1])
            out[t] = self._attend(q[t], cached, step)
        step.write(self.out, out.reshape(len(q), -1))

    def _attend(
        self,
        q: NDArray[np.float32],
        cached: CachedRows,
        step: ReferenceStep,
    ) -> NDArray[np.float32]:
        """q: [kv_heads, group, head_dim]."""
        scores = by_head("d,cd->c", q, cached.keys) * np.float32(self.scale)
        if self.softcap:
            scores = np.tanh(scores / np.float32(self.softcap)) * np.float32(self.softcap)
        sinks = self._sinks(step).reshape(*scores.shape[:2], 1)
        top = np.maximum(scores.max(axis=-1, keepdims=True), sinks)
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True) + np.exp(sinks - top)
        scaled = step.rounded(weights * cached.value_scales.T[:, None], self.out.dtype)
        return by_head("c,cd->d", scaled, cached.values) / total

    def _sinks(self, step: ReferenceStep) -> NDArray[np.float32]:
        """Scores of minus infinity where there are none."""
        if self.sinks is None:
            return np.full(self.shape.heads, -np.inf, np.float32)
        return step.weight(self.sinks)


def _at(cached: CachedRows, positions: NDArray[np.float32]) -> CachedRows:
    at = positions.astype(np.int64)
    return type(cached)(*(part[at] for part in cached))


def by_head(how: str, x: NDArray[np.float32], cached: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums of each head by itself, so that its bits do not depend on the heads beside it. x: [kv_heads,
    group, of one head]; cached: [context, kv_heads, width]."""
    heads = [[np.einsum(how, q, cached[:, h]) for q in group] for h, group in enumerate(x)]
    return np.array(heads, np.float32)
