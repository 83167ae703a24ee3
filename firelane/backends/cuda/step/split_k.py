"""SplitKSum: a split-K product whose parts lie in memory until its reader adds them up, so that no launch
does only that."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firelane.program.ops import (
    Cast,
    LatentCache,
    Op,
    RMSNorm,
    RopeAndCache,
    Route,
    SelectRows,
    TellFeatures,
)
from firelane.program.values import Value


@dataclass(frozen=True, kw_only=True)
class SplitKSum:
    """value = (((parts[0] + parts[1]) + …) + bias) * scale + residual, in float32, in this order.

    parts: float32 [count, rows, width], row stride parts.stride(1); bias: float32 [width]; residual:
    float32 [rows, stride] or None. out: where the reader writes the value, float32 [rows, stride]; None:
    nobody else reads it.
    """

    parts: Tensor
    width: int
    bias: Tensor | None
    residual: Tensor | None
    out: Tensor | None
    scale: float = 1.0

    @property
    def count(self) -> int:
        return self.parts.shape[0]


Source = Tensor | SplitKSum
"""A value to be read: added up already, float32 [rows, stride], or in parts."""


def added_up(op: Op) -> Value | None:
    """The input whose parts the kernels of `op` add up, where it lies in parts."""
    match op:
        case RMSNorm() | Cast() | SelectRows() | TellFeatures():
            return op.x
        case RopeAndCache():
            return op.qkv
        case LatentCache():
            return op.latent
        case Route():
            return op.logits
        case _:
            return None
