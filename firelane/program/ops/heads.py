"""Attention heads: their shape, the norms of each, and the temperature of queries by position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.program.cache_codes import SCALE_BYTES, SCALES, CacheCode
from firelane.program.values import DType, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """heads query heads in groups of heads // kv_heads share one of kv_heads key/value heads. Queries and
    keys are head_dim wide, values value_dim, 0 for as wide as keys. `shared`: the first value_dim numbers of
    a key are its value, too, and are kept once: latent attention (DeepSeek V2, 2024). `code`: how the cache
    keeps keys and values; None: as numbers of the dtype of attention.
    """

    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int = 0
    shared: bool = False
    code: CacheCode | None = None

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0, (
            f"{self.heads} heads do not share {self.kv_heads} kv heads evenly"
        )
        assert self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd"
        assert not self.shared or self.v_dim <= self.head_dim, (
            f"values of {self.v_dim} in keys of {self.head_dim}"
        )

    @property
    def v_dim(self) -> int:
        """The width of a value head."""
        return self.value_dim or self.head_dim

    @property
    def q_width(self) -> int:
        """Width of all query heads together."""
        return self.heads * self.head_dim

    @property
    def k_width(self) -> int:
        """Width of all key heads together."""
        return self.kv_heads * self.head_dim

    @property
    def v_width(self) -> int:
        """Width of all value heads together."""
        return self.kv_heads * self.v_dim

    @property
    def out_width(self) -> int:
        """Width of the output of attention for all query heads together."""
        return self.heads * self.v_dim

    @property
    def cached_width(self) -> int:
        """Numbers that the cache keeps of a token."""
        return self.k_width if self.shared else self.k_width + self.v_width

    def cached_bytes(self, dtype: DType) -> int:
        """Bytes of a token in the cache, where numbers without a code are of `dtype`."""
        if self.code is None:
            return self.cached_width * dtype.itemsize
        return self.cached_width + SCALES * SCALE_BYTES * self.kv_heads

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class HeadNorm:
    """RMS norms of queries and of keys: of each head, with q, k: [head_dim], or of all heads of a row
    together (`whole`), with q: [heads * head_dim], k: [kv_heads * head_dim]. q and k are both None for a norm
    without weights; k alone where there are no keys. `values`: each value head is normalised too, without
    weights."""

    q: Weight | None
    k: Weight | None
    eps: float
    whole: bool = False
    values: bool = False

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(w for w in (self.q, self.k) if w is not None)

    def check(self, shape: HeadShape, *, keys: bool) -> None:
        """AssertionError unless the weights fit the heads. keys: whether there are some."""
        assert not keys or (self.q is None) == (self.k is None), "HeadNorm: weights of q or k alone"
        widths = (shape.q_width, shape.k_width) if self.whole else (shape.head_dim,) * 2
        for weight, width in zip(self.weights, widths, strict=False):
            assert weight.shape == (width,), f"{weight.name}: {weight.shape}, heads of {width}"

    def apply(self, x: F32, weight: Weight | None, step: ReferenceStep) -> F32:
        """x: float32 [tokens, heads, head_dim], normalised and times q or k."""
        axes = (-2, -1) if self.whole else (-1,)
        scaled = x / np.sqrt(np.mean(x * x, axis=axes, keepdims=True) + np.float32(self.eps))
        if weight is None:
            return scaled
        factors = step.weight(weight)
        return scaled * (factors.reshape(x.shape[1:]) if self.whole else factors)

    def apply_values(self, v: F32) -> F32:
        """v: float32 [tokens, kv_heads, v_dim]."""
        return v / np.sqrt(np.mean(v * v, axis=-1, keepdims=True) + np.float32(self.eps))


@dataclass(frozen=True, kw_only=True)
class Temperature:
    """A factor of all queries of one position, which grows with the context: 1 + growth * ln(1 +
    floor((position + offset) / period)) (Llama 4, 2025), rounded to float32."""

    growth: float
    period: int
    offset: int = 0

    def table(self, positions: int, *, begin: int = 0) -> F32:
        """float32 [positions]: of each one from `begin` on."""
        return self.at(np.arange(begin, begin + positions, dtype=np.int64))

    def at(self, positions: NDArray[np.int64]) -> F32:
        periods = (positions + self.offset) // self.period
        return (1 + self.growth * np.log1p(periods.astype(np.float64))).astype(np.float32)
