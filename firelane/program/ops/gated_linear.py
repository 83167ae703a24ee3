"""GatedLinear: the first half of a gated MLP (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op, Product
from firelane.program.reference_step import ReferenceStep
from firelane.program.values import Cost, StepShape, Value, Weight


@dataclass(frozen=True)
class Gate:
    """The function of a gated MLP: f(g, u) = g * sigmoid(g) * u, the only kind that there are kernels for."""

    kind: Literal["silu"] = "silu"

    def apply(self, gate: NDArray[np.float32], up: NDArray[np.float32]) -> NDArray[np.float32]:
        sigmoid = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * gate))  # this form does not overflow
        return (gate * sigmoid * up).astype(np.float32)


SILU = Gate()


@dataclass(frozen=True, kw_only=True)
class GatedLinear(Op):
    """out = gate(x · gateᵀ + gate bias, x · upᵀ + up bias), where weight = [gate; up]: [2 * out.width,
    x.width] and bias (if any) = [gate bias; up bias]. Sums and the gate's function in float32, then rounded
    to out's dtype."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    gate: Gate = SILU
    out: Value

    def __post_init__(self) -> None:
        assert self.weight.shape == (2 * self.out.width, self.x.width), (
            f"GatedLinear {self.out.name}: weight {self.weight.shape}, x {self.x.width}, out {self.out.width}"
        )
        assert all(w.layout.is_gated for w in self.weights), f"GatedLinear {self.out.name}: layout"
        if self.bias is not None:
            assert self.bias.shape == (2 * self.out.width,), (
                f"GatedLinear {self.out.name}: bias {self.bias.shape}"
            )

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        rows, (n, k) = shape.rows(self.x.rows), self.weight.shape
        return Cost(flops=2.0 * rows * n * k, weight_bytes=float(sum(w.nbytes for w in self.weights)))

    def reference(self, step: ReferenceStep) -> None:
        both = step.read(self.x) @ step.weight(self.weight).T
        if self.bias is not None:
            both += step.weight(self.bias)
        step.write(self.out, self.gate.apply(both[:, : self.out.width], both[:, self.out.width :]))
