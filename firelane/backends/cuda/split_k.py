"""SplitKSum: a split-K product whose parts lie in memory until its reader adds them up, so that no launch
does only that."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class SplitKSum:
    """value = (((parts[0] + parts[1]) + …) + bias) + residual, in float32, in this order.

    parts: float32 [count, rows, width], row stride parts.stride(1); bias: float32 [width]; residual:
    float32 [rows, stride] or None. out: where the reader writes the value, float32 [rows, stride]; None:
    nobody else reads it.
    """

    parts: Tensor
    width: int
    bias: Tensor | None
    residual: Tensor | None
    out: Tensor | None

    @property
    def count(self) -> int:
        return self.parts.shape[0]


Source = Tensor | SplitKSum
"""A value to be read: added up already, float32 [rows, stride], or in parts."""
