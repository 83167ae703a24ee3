"""Cast: the residual stream as a matrix product reads it, where no norm stands between them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class Cast(Op):
    """out = x rounded to out's dtype. x: F32; same rows and width."""

    x: Value
    out: Value

    def __post_init__(self) -> None:
        assert self.x.width == self.out.width, f"Cast {self.out.name}: widths differ"
        assert self.x.rows is self.out.rows, f"Cast {self.out.name}: row kinds differ"
        assert self.x.dtype is DType.F32, f"Cast {self.out.name}: x is F32"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=float(shape.rows(self.x.rows) * self.x.width))

    def reference(self, step: ReferenceStep) -> None:
        step.write(self.out, step.read(self.x))
