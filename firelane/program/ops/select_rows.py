"""SelectRows: from one row a token to one row for each position whose logits are wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firelane.program.ops.base import Op
from firelane.program.values import Cost, Rows, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class SelectRows(Op):
    """out[r] = x[row_token[r]]."""

    x: Value
    out: Value

    def __post_init__(self) -> None:
        assert self.x.rows is Rows.TOKEN, "SelectRows: x has TOKEN rows"
        assert self.out.rows is Rows.OUTPUT, "SelectRows: out has OUTPUT rows"
        assert (self.x.width, self.x.dtype) == (self.out.width, self.out.dtype), (
            "SelectRows: x and out differ"
        )

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - activations stay in cache
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        step.write(self.out, step.read(self.x)[step.row_token])
