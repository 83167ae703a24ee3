"""GatedLinear: the first half of a gated MLP (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.values import Value, Weight


@dataclass(frozen=True, kw_only=True)
class GatedLinear:
    """out = silu(x · gateᵀ + gate bias) * (x · upᵀ + up bias), where weight = [gate; up]: [2 * out.width, x.width] and
    bias (if any) = [gate bias; up bias]. Sums and silu in float32, then rounded to out's dtype."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    out: Value

    def __post_init__(self) -> None:
        assert self.weight.shape == (2 * self.out.width, self.x.width), (
            f"GatedLinear {self.out.name}: weight {self.weight.shape}, x {self.x.width}, out {self.out.width}"
        )
        if self.bias is not None:
            assert self.bias.shape == (2 * self.out.width,), f"GatedLinear {self.out.name}: bias {self.bias.shape}"
