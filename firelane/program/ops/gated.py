"""Gated: one value times a function of another, element by element (Dauphin et al., "Gated Convolutional
Networks", 2017).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from firelane.program.ops.base import F32, Op
from firelane.program.ops.gated_linear import GELU_TANH, SILU, normal_distribution
from firelane.program.values import Cost, DType, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

Activation = Literal["sigmoid", "silu", "gelu", "gelu_tanh", "normal", "normal_tanh", "relu", "none"]
"""normal: the normal distribution's function; gelu: g times that of g (Hendrycks and Gimpel, 2016). _tanh:
approximated by a tangent."""


@dataclass(frozen=True, kw_only=True)
class Gated(Op):
    """out = x · act(gate), computed in float32, then rounded to out's dtype: of the first out.width numbers
    of each row of x, and of as many of gate from `column` on. gate: F32."""

    x: Value
    gate: Value
    act: Activation
    column: int = 0
    out: Value

    def __post_init__(self) -> None:
        name, width = f"Gated {self.out.name}", self.out.width
        assert self.x.width >= width, f"{name}: {width} of x {self.x.width}"
        assert 0 <= self.column <= self.gate.width - width, (
            f"{name}: columns {self.column} to {self.column + width} of gate {self.gate.width}"
        )
        assert self.gate.dtype is DType.F32, f"{name}: gate is F32"
        assert DType.I32 not in (self.x.dtype, self.out.dtype), f"{name}: x and out are no integers"
        assert self.x.rows is self.gate.rows is self.out.rows, f"{name}: row kinds differ"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=4.0 * shape.rows(self.x.rows) * self.out.width)

    def reference(self, step: ReferenceStep) -> None:
        width = self.out.width
        gate = step.read(self.gate)[:, self.column : self.column + width]
        step.write(self.out, step.read(self.x)[:, :width] * activated(gate, self.act))


def activated(x: F32, act: Activation) -> F32:
    """The function `act` of each number."""
    if act == "none":
        return x
    if act == "sigmoid":
        return sigmoid(x)
    if act == "relu":
        return np.maximum(x, np.float32(0))
    if act in ("gelu", "normal"):
        normal = normal_distribution(x)
        return normal if act == "normal" else x * normal
    if act == "normal_tanh":
        cubed = x + np.float32(0.044715) * x * x * x
        return sigmoid((2 * math.sqrt(2 / math.pi) * cubed).astype(np.float32))
    gate = SILU if act == "silu" else GELU_TANH
    return gate.apply(x, np.ones_like(x))


def sigmoid(x: F32) -> F32:
    """In a form that does not overflow."""
    return (np.float32(0.5) * (1 + np.tanh(np.float32(0.5) * x))).astype(np.float32)
