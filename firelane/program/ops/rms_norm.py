"""RMSNorm: root mean square layer normalisation (Zhang and Sennrich, 2019)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Op):
    """out = (x / sqrt(mean(x^2) + eps) * weight + residual) * scalar, computed in float32; each of the last
    three only where it is given. x, residual: F32; weight: [width]; scalar: [1]; same rows and width. The
    mean is over each of `groups` equal parts of a row by itself.
    """

    x: Value
    weight: Weight | None
    eps: float
    residual: Value | None = None
    scalar: Weight | None = None
    groups: int = 1
    out: Value

    def __post_init__(self) -> None:
        for width in (self.out.width, *(w.shape[0] for w in (self.weight,) if w)):
            assert self.x.width == width, f"RMSNorm {self.out.name}: widths differ"
        assert self.x.rows is self.out.rows, f"RMSNorm {self.out.name}: row kinds differ"
        assert self.x.width % self.groups == 0, (
            f"RMSNorm {self.out.name}: {self.x.width} in {self.groups} groups"
        )
        if self.residual is not None:
            assert self.out.dtype is DType.F32, f"RMSNorm {self.out.name}: with a residual, out is F32"
            assert self.residual.width == self.x.width, f"RMSNorm {self.out.name}: residual"
        assert self.scalar is None or self.scalar.shape == (1,), f"RMSNorm {self.out.name}: scalar"

    def cost(self, shape: StepShape) -> Cost:
        read = sum(w.nbytes for w in self.weights)
        return Cost(flops=4.0 * shape.rows(self.x.rows) * self.x.width, weight_bytes=float(read))

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        parts = x.reshape(len(x), self.groups, x.shape[1] // self.groups)
        parts = parts / np.sqrt(np.mean(parts * parts, axis=-1, keepdims=True) + np.float32(self.eps))
        out = parts.reshape(x.shape)
        if self.weight is not None:
            out = out * step.weight(self.weight)
        if self.residual is not None:
            out = out + step.read(self.residual)
        if self.scalar is not None:
            out = out * step.weight(self.scalar)
        step.write(self.out, out)
