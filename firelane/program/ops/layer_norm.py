"""LayerNorm: layer normalisation (Ba, Kiros and Hinton, 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Op):
    """out = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, computed in float32; the bias
    only where it is given. x: F32; weight, bias: [width]; same rows and width. `rounded`, if any, is `out`
    in the dtype of that value: what a matrix product reads, where the stream goes on from the norm."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    eps: float
    out: Value
    rounded: Value | None = None

    def __post_init__(self) -> None:
        made = [value for value in (self.out, self.rounded) if value is not None]
        for width in (*(v.width for v in made), *(w.shape[0] for w in self.weights)):
            assert self.x.width == width, f"LayerNorm {self.out.name}: widths differ"
        assert all(v.rows is self.x.rows for v in made), f"LayerNorm {self.out.name}: row kinds differ"
        assert self.x.dtype is DType.F32, f"LayerNorm {self.out.name}: x is F32"

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.out,) if self.rounded is None else (self.out, self.rounded)

    def cost(self, shape: StepShape) -> Cost:
        read = sum(w.nbytes for w in self.weights)
        return Cost(flops=7.0 * shape.rows(self.x.rows) * self.x.width, weight_bytes=float(read))

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        apart = x - np.mean(x, axis=1, keepdims=True)
        out = apart / np.sqrt(np.mean(apart * apart, axis=1, keepdims=True) + np.float32(self.eps))
        out = out * step.weight(self.weight)
        if self.bias is not None:
            out = out + step.weight(self.bias)
        for value in self.outputs:
            step.write(value, out)
