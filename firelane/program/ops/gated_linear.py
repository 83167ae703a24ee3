"""GatedLinear: the first half of a gated MLP (Shazeer, "GLU Variants Improve Transformer", 2020)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op, Product
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]
GELU_CUBIC = 0.044715
GELU_SLOPE = 2 * math.sqrt(2 / math.pi)


@dataclass(frozen=True, kw_only=True)
class Gate:
    """The function of a gated MLP: f(g, u) = act(min(g, limit)) * (clamp(u, -limit, limit) + up_offset),
    where act is g * sigmoid(alpha * g), or GELU (Hendrycks and Gimpel, 2016), exactly
    ("gelu") or in its tanh form. A limit of 0
    is none. "relu2" is the function of an MLP that has no gate: max(u, 0)² (So et al., "Primer", 2021)."""

    kind: Literal["silu", "gelu", "gelu_tanh", "relu2"] = "silu"
    alpha: float = 1.0
    limit: float = 0.0
    up_offset: float = 0.0

    def __post_init__(self) -> None:
        assert self.kind == "silu" or self.is_plain, f"{self}: only silu has parameters"

    @property
    def is_plain(self) -> bool:
        """Whether it is act(g) * u."""
        return (self.alpha, self.limit, self.up_offset) == (1.0, 0.0, 0.0)

    @property
    def halves(self) -> int:
        """Numbers that it takes of each column: of gate and up, or of up alone."""
        return 1 if self.kind == "relu2" else 2

    def of_sums(self, sums: F32) -> F32:
        """The function of a product's columns: gate's, then up's; or up's alone."""
        if self.halves == 1:
            return np.square(np.maximum(sums, np.float32(0)))
        n = sums.shape[-1] // 2
        return self.apply(sums[..., :n], sums[..., n:])

    def apply(self, gate: F32, up: F32) -> F32:
        if self.limit:
            gate, up = np.minimum(gate, np.float32(self.limit)), np.clip(up, -self.limit, self.limit)
        if self.kind == "gelu":
            return (gate * normal_distribution(gate) * up).astype(np.float32)
        slope = self._slope(gate)
        sigmoid = np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * slope))  # this form does not overflow
        return (gate * sigmoid * (up + np.float32(self.up_offset))).astype(np.float32)

    def _slope(self, gate: F32) -> F32:
        """The slope in act(g) = g * sigmoid(slope(g)), which both kinds share."""
        if self.kind == "silu":
            return gate * np.float32(self.alpha)
        return (GELU_SLOPE * (gate + GELU_CUBIC * gate**3)).astype(np.float32)


def normal_distribution(x: F32) -> F32:
    """The share of normally distributed numbers that are below each x, rounded from float64."""
    below = [0.5 * (1.0 + math.erf(number * math.sqrt(0.5))) for number in x.ravel().tolist()]
    return np.array(below, np.float32).reshape(x.shape)


SILU = Gate()
GELU = Gate(kind="gelu")
GELU_TANH = Gate(kind="gelu_tanh")
RELU2 = Gate(kind="relu2")


@dataclass(frozen=True, kw_only=True)
class GatedLinear(Op):
    """out = gate(x · gateᵀ + gate bias, x · upᵀ + up bias), where weight = [gate; up]: [2 * out.width,
    x.width] and bias (if any) = [gate bias; up bias]; columns of `delta` (if any), [gate; up] as well, are
    added before the function. Sums and the gate's function in float32, then rounded to out's dtype."""

    x: Value
    weight: Weight
    bias: Weight | None = None
    gate: Gate = SILU
    delta: Value | None = None
    out: Value

    def __post_init__(self) -> None:
        assert self.gate.halves == 2, f"GatedLinear {self.out.name}: {self.gate.kind} has no gate"
        assert self.weight.shape == (2 * self.out.width, self.x.width), (
            f"GatedLinear {self.out.name}: weight {self.weight.shape}, x {self.x.width}, out {self.out.width}"
        )
        assert all(w.layout.is_gated for w in self.weights), f"GatedLinear {self.out.name}: layout"
        if self.bias is not None:
            assert self.bias.shape == (2 * self.out.width,), (
                f"GatedLinear {self.out.name}: bias {self.bias.shape}"
            )

        if self.delta is not None:
            assert self.delta.width == 2 * self.out.width, f"GatedLinear {self.out.name}: {self.delta}"
            assert self.delta.dtype is DType.F32, f"GatedLinear {self.out.name}: delta is F32"

    @property
    def products(self) -> tuple[Product, ...]:
        return (Product(self.x, self.weight, self.out),)

    def cost(self, shape: StepShape) -> Cost:
        rows, (n, k) = shape.rows(self.x.rows), self.weight.shape
        return Cost(flops=2.0 * rows * n * k, weight_bytes=float(sum(w.nbytes for w in self.weights)))

    def reference(self, step: ReferenceStep) -> None:
        both = step.product(step.read(self.x), self.weight)
        if self.bias is not None:
            both += step.weight(self.bias)
        if self.delta is not None:
            both += step.read(self.delta)
        step.write(self.out, self.gate.of_sums(both))
