"""Functions of single numbers: the tangent that caps scores and logits, and those of gated products."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from firelane.program.ops import Gate
from firelane.program.ops.gated_linear import GELU_CUBIC, GELU_SLOPE

_GELU_CUBIC, _GELU_SLOPE = tl.constexpr(GELU_CUBIC), tl.constexpr(GELU_SLOPE)
LOG2_E = 1.4426950408889634
TWICE_LOG2_E = 2 * LOG2_E
_TWICE_LOG2_E = tl.constexpr(TWICE_LOG2_E)


class GateOperand(NamedTuple):
    """A Gate, in constexprs."""

    gelu: Any
    alpha: Any
    limit: Any
    up_offset: Any


@triton.jit
def tanh_of_exponent(x):
    """tanh(x / (2 * log2(e))), which does not overflow: 2^x may be infinite."""
    return 1.0 - 2.0 / (1.0 + tl.exp2(x))


@triton.jit
def softplus(x):
    """log(1 + exp(x)), which does not overflow."""
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def capped(x, CAP: tl.constexpr):
    """CAP * tanh(x / CAP); x for a cap of 0."""
    if CAP != 0.0:
        x = tanh_of_exponent(x * (_TWICE_LOG2_E / CAP)) * CAP
    return x


@triton.jit
def gated(gate, up, kind):
    """Gate.apply of this kind (GateOperand): act(gate) * up, where act(g) = g * sigmoid(slope(g))."""
    if kind.limit != 0.0:
        gate = tl.minimum(gate, kind.limit)
        up = tl.minimum(tl.maximum(up, -kind.limit), kind.limit)
    if kind.up_offset != 0.0:
        up += kind.up_offset
    slope = gate
    if kind.gelu:
        slope = (gate + gate * gate * gate * _GELU_CUBIC) * _GELU_SLOPE
    elif kind.alpha != 1.0:
        slope = gate * kind.alpha
    return gate / (1.0 + tl.exp(-slope)) * up


@triton.jit
def activated(x, ACT: tl.constexpr):
    """The function ACT of each number, as in the ops Gated and ShortConv."""
    if ACT == "sigmoid":
        x = 1.0 / (1.0 + tl.exp(-x))
    elif ACT == "silu":
        x = x / (1.0 + tl.exp(-x))
    elif ACT == "relu":
        x = tl.maximum(x, 0.0)
    elif ACT == "gelu_tanh":
        x = x / (1.0 + tl.exp(-((x + x * x * x * _GELU_CUBIC) * _GELU_SLOPE)))
    return x


def gate_operand(gate: Gate) -> GateOperand:
    """The kind of gate that a kernel that calls gated() is compiled for."""
    return GateOperand(
        gelu=tl.constexpr(gate.kind == "gelu_tanh"),
        alpha=tl.constexpr(gate.alpha),
        limit=tl.constexpr(gate.limit),
        up_offset=tl.constexpr(gate.up_offset),
    )
