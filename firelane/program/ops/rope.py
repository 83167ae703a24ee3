"""RopeAndCache: rotate queries and keys by position (Su et al., "RoFormer", 2021), and write keys and values to the cache."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.values import DType, Value, Weight


@dataclass(frozen=True, kw_only=True)
class HeadShape:
    """heads query heads in groups of heads // kv_heads share one of kv_heads key/value heads; each is head_dim wide."""

    heads: int
    kv_heads: int
    head_dim: int

    def __post_init__(self) -> None:
        assert self.heads % self.kv_heads == 0, f"{self.heads} heads do not share {self.kv_heads} kv heads evenly"
        assert self.head_dim % 2 == 0, f"head_dim {self.head_dim} is odd"

    @property
    def group(self) -> int:
        return self.heads // self.kv_heads


@dataclass(frozen=True, kw_only=True)
class Rotary:
    """Inverse frequencies, one for each pair of dimensions (i, i + head_dim / 2), in radians a position; float32 exact.
    cos and sin are computed in float64 from the float32 frequency times the position, times `scale`, then rounded to float32."""

    inverse_frequencies: tuple[float, ...]
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RopeAndCache:
    """qkv rows hold [q heads | k heads | v heads]. Optionally each q and k head is RMS-normalised (q_norm, k_norm: [head_dim]),
    then rotated. q goes to `out` [heads * head_dim]; k and v, rounded to out's dtype, to the cache of `layer`."""

    qkv: Value
    layer: int
    shape: HeadShape
    rotary: Rotary
    q_norm: Weight | None = None
    k_norm: Weight | None = None
    norm_eps: float = 0.0
    out: Value

    def __post_init__(self) -> None:
        s = self.shape
        assert self.qkv.width == (s.heads + 2 * s.kv_heads) * s.head_dim, f"RopeAndCache {self.layer}: qkv {self.qkv.width}"
        assert self.out.width == s.heads * s.head_dim, f"RopeAndCache {self.layer}: out {self.out.width}"
        assert self.qkv.dtype is DType.F32, f"RopeAndCache {self.layer}: qkv is F32"
        assert len(self.rotary.inverse_frequencies) == s.head_dim // 2, f"RopeAndCache {self.layer}: frequencies"
        for norm in (self.q_norm, self.k_norm):
            assert norm is None or norm.shape == (s.head_dim,), f"RopeAndCache {self.layer}: norm"
