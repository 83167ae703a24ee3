"""GatedLinear: the first half of a gated MLP (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.values import Cost, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class GatedLinear:
    """out = silu(x · gateᵀ + gate bias) * (x · upᵀ + up bias), where weight = [gate; up]: [2 * out.width,
    x.width] and bias (if any) = [gate bias; up bias]. Sums and silu in float32, then rounded to out's
    dtype."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    out: Value

    def __post_init__(self) -> None:
        assert self.weight.shape == (2 * self.out.width, self.x.width), (
            f"GatedLinear {self.out.name}: weight {self.weight.shape}, x {self.x.width}, out {self.out.width}"
        )
        if self.bias is not None:
            assert self.bias.shape == (2 * self.out.width,), (
                f"GatedLinear {self.out.name}: bias {self.bias.shape}"
            )

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.x,)

    @property
    def outputs(self) -> tuple[Value, ...]:
        return (self.out,)

    @property
    def weights(self) -> tuple[Weight, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def cost(self, shape: StepShape) -> Cost:
        rows, (n, k) = shape.rows(self.x.rows), self.weight.shape
        return Cost(flops=2.0 * rows * n * k, weight_bytes=float(sum(w.nbytes for w in self.weights)))

    def reference(self, step: ReferenceStep) -> None:
        both = step.read(self.x) @ step.weight(self.weight).T
        if self.bias is not None:
            both += step.weight(self.bias)
        gate, up = both[:, : self.out.width], both[:, self.out.width :]
        sigmoid = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * gate))  # this form does not overflow
        step.write(self.out, (gate * sigmoid * up).astype(np.float32))
