"""RMSNorm: root mean square layer normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.reference_step import ReferenceStep
from firelane.program.values import Cost, StepShape, Value, Weight


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Op):
    """out = x / sqrt(mean(x^2) + eps) * weight, computed in float32. x: F32; weight: [width]; same rows and
    width.
    """

    x: Value
    weight: Weight
    eps: float
    out: Value

    def __post_init__(self) -> None:
        assert self.x.width == self.out.width == self.weight.shape[0], (
            f"RMSNorm {self.out.name}: widths differ"
        )
        assert self.x.rows is self.out.rows, f"RMSNorm {self.out.name}: row kinds differ"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(
            flops=4.0 * shape.rows(self.x.rows) * self.x.width, weight_bytes=float(self.weight.nbytes)
        )

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        mean_square = np.mean(x * x, axis=-1, keepdims=True)
        step.write(self.out, x / np.sqrt(mean_square + np.float32(self.eps)) * step.weight(self.weight))
