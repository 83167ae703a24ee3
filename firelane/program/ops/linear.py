"""Linear: a matrix product with optional bias and residual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op, Product
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class Linear(Op):
    """out = scale * (x · weightᵀ + bias) + residual; with a `softcap` (Gemma 2, 2024), softcap * tanh(that /
    softcap). weight: [out.width, x.width]; x has the weight's dtype; out and residual are F32 (accumulated in
    float32, in increasing order of k; in segments of these widths, if there are some, see program.segments).
    `residual` may be the same value as a former input: a new value is made."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    residual: Value | None = None
    scale: float = 1.0
    softcap: float = 0.0
    segments: tuple[int, ...] = ()
    out: Value

    def __post_init__(self) -> None:
        assert self.weight.shape == (self.out.width, self.x.width), (
            f"Linear {self.out.name}: weight {self.weight.shape}, x {self.x.width}, out {self.out.width}"
        )
        assert self.out.dtype is DType.F32, f"Linear {self.out.name}: out is F32"
        assert not self.segments or sum(self.segments) == self.x.width, (
            f"Linear {self.out.name}: segments {self.segments} of {self.x.width} inputs"
        )
        if self.bias is not None:
            assert self.bias.shape == (self.out.width,), f"Linear {self.out.name}: bias {self.bias.shape}"
        if self.residual is not None:
            assert self.residual.width == self.out.width, (
                f"Linear {self.out.name}: residual {self.residual.width}"
            )

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        rows, (n, k) = shape.rows(self.x.rows), self.weight.shape
        return Cost(flops=2.0 * rows * n * k, weight_bytes=float(sum(w.nbytes for w in self.weights)))

    def reference(self, step: ReferenceStep) -> None:
        out = step.product(step.read(self.x), self.weight, self.segments)
        if self.bias is not None:
            out += step.weight(self.bias)
        out *= np.float32(self.scale)
        if self.residual is not None:
            out += step.read(self.residual)
        if self.softcap:
            out = np.tanh(out / np.float32(self.softcap)) * np.float32(self.softcap)
        step.write(self.out, out)
