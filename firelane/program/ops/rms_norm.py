"""RMSNorm: root mean square layer normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.program.values import Value, Weight


@dataclass(frozen=True, kw_only=True)
class RMSNorm:
    """out = x / sqrt(mean(x^2) + eps) * weight, computed in float32. x: F32; weight: [width]; same rows and width."""

    x: Value
    weight: Weight
    eps: float
    out: Value

    def __post_init__(self) -> None:
        assert self.x.width == self.out.width == self.weight.shape[0], f"RMSNorm {self.out.name}: widths differ"
        assert self.x.rows is self.out.rows, f"RMSNorm {self.out.name}: row kinds differ"
