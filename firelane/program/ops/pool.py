"""Pool: one row for a whole sequence (Reimers and Gurevych, "Sentence-BERT", 2019); and GiveHidden, which
hands such rows to the engine.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, Rows, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]
PoolKind = Literal["mean", "cls", "last", "max"]


@dataclass(frozen=True, kw_only=True)
class Pool(Op):
    """out[r] = the mean, the maximum, the first ("cls") or the last of the rows of x from the beginning of
    the sequence up to row_token[r]. All of them have to be in the step: row_position[r] + 1 of them. A mean
    is a float32 sum that grows position by position, times a float32 inverse. x: TOKEN rows; out: OUTPUT
    rows, both F32."""

    x: Value
    kind: PoolKind
    out: Value

    def __post_init__(self) -> None:
        assert self.x.rows is Rows.TOKEN, "Pool: x has TOKEN rows"
        assert self.out.rows is Rows.OUTPUT, "Pool: out has OUTPUT rows"
        assert self.x.width == self.out.width, "Pool: widths differ"
        assert self.x.dtype is self.out.dtype is DType.F32, "Pool: x and out are F32"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=float(shape.tokens * self.x.width))

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        rows = [x[last - step.positions[last] : last + 1] for last in step.row_token.tolist()]
        pooled = [self._pooled(one) for one in rows]
        step.write(self.out, np.array(pooled, np.float32).reshape(-1, x.shape[1]))

    def _pooled(self, rows: F32) -> F32:
        if self.kind == "cls":
            return rows[0]
        if self.kind == "last":
            return rows[-1]
        if self.kind == "max":
            return rows.max(axis=0)
        total = np.zeros(rows.shape[1], np.float32)
        for row in rows:
            total = total + row
        return total * (np.float32(1) / np.float32(len(rows)))


@dataclass(frozen=True, kw_only=True)
class GiveHidden(Op):
    """Rows of x become StepOutputs.hidden, for output rows of kind EMBED. x: OUTPUT rows, F32."""

    x: Value

    def __post_init__(self) -> None:
        assert self.x.rows is Rows.OUTPUT, "GiveHidden: x has OUTPUT rows"
        assert self.x.dtype is DType.F32, "GiveHidden: x is F32"

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - activations stay in cache
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        step.give_hidden(step.read(self.x))
