"""Attention: causal softmax attention over the paged cache (Vaswani et al., 2017; Ainslie et al., "GQA", 2023)."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.ops.rope import HeadShape
from firelane.program.values import Value


@dataclass(frozen=True, kw_only=True)
class Attention:
    """out = softmax(scale * q · Kᵀ) · V for each head, over positions p - window < j <= p (window 0: all j <= p).
    Scores and sums in float32; the probabilities are rounded to out's dtype before the product with V."""

    q: Value
    layer: int
    shape: HeadShape
    scale: float
    window: int = 0
    out: Value

    def __post_init__(self) -> None:
        width = self.shape.heads * self.shape.head_dim
        assert self.q.width == self.out.width == width, f"Attention {self.layer}: q {self.q.width}, out {self.out.width}"
        assert self.q.dtype is self.out.dtype, f"Attention {self.layer}: q and out differ in dtype"
