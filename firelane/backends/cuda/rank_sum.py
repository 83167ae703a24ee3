"""RankSum: a sum over ranks whose parts lie in the memory of each until its reader adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.device.launch import Work


@dataclass(frozen=True, kw_only=True)
class RankSum:
    """value = (sum of parts + bias) * scale + residual, in float32, the sum a binary tree.

    parts: of each rank, float32 [rows, stride], of one stride; bias: float32 [width]; residual, out: float32
    [rows, stride]. out: where the reader writes the value. closing: work behind the reader.
    """

    parts: Sequence[Tensor]
    bias: Tensor | None
    residual: Tensor | None
    scale: float
    out: Tensor
    closing: Sequence[Work] = ()
