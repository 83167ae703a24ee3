"""AddEmbedding: what a token's place adds to its embedding (Devlin et al., "BERT", 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, Rows, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

Place = Literal["position", "segment"]


@dataclass(frozen=True, kw_only=True)
class AddEmbedding(Op):
    """out[t] = x[t] + table[offset + place of t], of a place behind the table its last row. The place is the
    token's position, or its segment: 1 from the slot's `second_text` on, where that is above 0, else 0. x,
    out: TOKEN rows, F32; table: a vector of `rows` rows, one behind the other."""

    x: Value
    table: Weight
    rows: int
    place: Place
    offset: int = 0
    out: Value

    def __post_init__(self) -> None:
        assert self.x.rows is self.out.rows is Rows.TOKEN, f"AddEmbedding {self.out.name}: TOKEN rows"
        assert self.x.dtype is self.out.dtype is DType.F32, f"AddEmbedding {self.out.name}: F32"
        assert self.x.width == self.out.width, f"AddEmbedding {self.out.name}: widths differ"
        assert self.table.shape == (self.rows * self.x.width,), f"AddEmbedding {self.out.name}: table"
        assert self.offset < self.rows, f"AddEmbedding {self.out.name}: offset"

    def cost(self, shape: StepShape) -> Cost:
        numbers = float(shape.tokens * self.x.width)
        return Cost(flops=numbers, weight_bytes=numbers * self.table.dtype.itemsize)

    def reference(self, step: ReferenceStep) -> None:
        table = step.weight(self.table).reshape(self.rows, self.x.width)
        rows = np.minimum(self.offset + self._places(step), self.rows - 1)
        step.write(self.out, step.read(self.x) + table[rows])

    def _places(self, step: ReferenceStep) -> NDArray[np.int64]:
        if self.place == "position":
            return step.positions
        if step.state is None:
            return np.zeros(len(step.positions), np.int64)
        second = step.state.sampling["second_text"][step.slots].astype(np.int64)
        return ((second > 0) & (step.positions >= second)).astype(np.int64)
