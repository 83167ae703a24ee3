"""The indexer of sparse attention (DeepSeek V3.2, 2025): small heads that choose the positions which
attention then reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import F32, Op
from firelane.program.ops.heads import HeadShape
from firelane.program.ops.rope import Rotary
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class IndexCache(Op):
    """Each head of a row of q is rotated, on its way to `out`. The row of `key`, one head, is normalised to a
    mean of 0 and a variance of 1 (LayerNorm), times `norm`, plus `bias`, and rotated; rounded to out's dtype,
    it is the key of `layer` in the cache.

    norm, bias: [head_dim]; q, key: F32.
    """

    q: Value
    key: Value
    layer: int
    norm: Weight
    bias: Weight
    eps: float
    rotary: Rotary
    out: Value

    def __post_init__(self) -> None:
        name, width = f"IndexCache {self.layer}", self.key.width
        assert self.q.dtype is self.key.dtype is DType.F32, f"{name}: q and key are F32"
        assert self.q.width == self.out.width, f"{name}: q {self.q.width}, out {self.out.width}"
        assert self.q.width % width == 0, f"{name}: q {self.q.width}, heads of {width}"
        assert self.norm.shape == self.bias.shape == (width,), f"{name}: norm {self.norm.shape}"
        assert 2 * len(self.rotary.inverse_frequencies) == width, f"{name}: frequencies"

    @property
    def heads(self) -> int:
        return self.q.width // self.key.width

    @property
    def tables(self) -> tuple[Rotary, ...]:
        """Tables that a backend keeps by position."""
        return (self.rotary,)

    def cost(self, shape: StepShape) -> Cost:
        return Cost(
            flops=3.0 * shape.tokens * (self.q.width + self.key.width),
            weight_bytes=float(self.norm.nbytes + self.bias.nbytes),
            kv_bytes=float(shape.tokens * self.key.width * self.out.dtype.itemsize),
        )

    def reference(self, step: ReferenceStep) -> None:
        key = step.read(self.key)
        q = step.read(self.q).reshape(len(key), self.heads, -1)
        step.write(self.out, self.rotary.rotate(q, step.positions).reshape(len(q), -1))
        centred = key - np.mean(key, axis=-1, keepdims=True)
        scale = np.sqrt(np.mean(centred * centred, axis=-1, keepdims=True) + np.float32(self.eps))
        normed = centred / scale * step.weight(self.norm) + step.weight(self.bias)
        step.write_cache(self.layer, self.rotary.rotate(normed[:, None], step.positions), None)


@dataclass(frozen=True, kw_only=True)
class IndexTopK(Op):
    """The positions that attention reads: of a token at position p, all of 0 .. p where they are at most k,
    the width of `out`; else the k with the highest score, in ascending order; of equals the lower position is
    chosen. A score is the sum over heads of weight * max(0, q · key), in float32, in the order of the heads.
    Behind the positions of a row stands -1.

    q: the queries of `shape`, which has one key head, in the dtype of the cache; head_weights: F32
    [T, heads]; out: I32 [T, k].
    """

    q: Value
    head_weights: Value
    layer: int
    shape: HeadShape
    out: Value

    def __post_init__(self) -> None:
        name, s = f"IndexTopK {self.layer}", self.shape
        assert self.q.width == s.q_width, f"{name}: q {self.q.width}, heads {s.q_width}"
        assert self.head_weights.width == s.heads, f"{name}: {self.head_weights.width} weights of {s.heads}"
        assert self.head_weights.dtype is DType.F32, f"{name}: weights of heads are F32"
        assert self.out.dtype is DType.I32, f"{name}: positions are I32"
        assert s.kv_heads == 1, f"{name}: {s.kv_heads} key heads"
        assert s.shared, f"{name}: the cache keeps keys alone"

    def cost(self, shape: StepShape) -> Cost:
        read = self.shape.cached_bytes(self.q.dtype)
        return Cost(flops=2.0 * shape.attended * self.shape.q_width, kv_bytes=float(shape.context * read))

    def reference(self, step: ReferenceStep) -> None:
        k, weights = self.out.width, step.read(self.head_weights)
        q = step.read(self.q).reshape(len(weights), self.shape.heads, -1)
        found = np.full((len(q), k), -1, np.float32)
        for t, (slot, position) in enumerate(zip(step.slots, step.positions, strict=True)):
            seen = int(position) + 1
            picked = np.arange(seen)
            if seen > k:
                keys = step.read_cache(self.layer, int(slot), 0, seen).keys[:, 0]
                picked = np.sort(np.argsort(-scores(q[t], keys, weights[t]), kind="stable")[:k])
            found[t, : len(picked)] = picked
        step.write(self.out, found)


def scores(q: F32, keys: F32, weights: F32) -> F32:
    """float32 [positions]. q: [heads, head_dim]; keys: [positions, head_dim]; weights: [heads]."""
    total = np.zeros(len(keys), np.float32)
    for head, weight in zip(q, weights, strict=True):
        total += np.maximum(np.einsum("d,cd->c", head, keys), np.float32(0)) * weight
    return total
