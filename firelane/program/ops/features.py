"""Features: numbers of each token that one program tells and another one reads in a later step, such as
hidden states of a model that the head which drafts for it reads (Li et al., "EAGLE", 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, Rows, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class ReadFeatures(Op):
    """out[t] = columns first .. first + width - 1 of row t of StepInputs.features, rounded to out's dtype.
    Where a program has several such ops, each column is read once."""

    first: int = 0
    out: Value

    def __post_init__(self) -> None:
        assert self.out.rows is Rows.TOKEN, f"ReadFeatures {self.out.name}: out has TOKEN rows"
        assert self.out.dtype is not DType.I32, f"ReadFeatures {self.out.name}: out is of numbers"

    @property
    def columns(self) -> range:
        return range(self.first, self.first + self.out.width)

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - activations stay in cache
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        assert step.inputs is not None
        step.write(self.out, step.inputs.features[: len(step.token_ids), self.first : self.columns.stop])


@dataclass(frozen=True, kw_only=True)
class TellFeatures(Op):
    """Columns first .. first + width - 1 of row t of StepOutputs.features = x[t], as float32."""

    x: Value
    first: int

    def __post_init__(self) -> None:
        assert self.x.rows is Rows.TOKEN, f"TellFeatures {self.x.name}: x has TOKEN rows"
        assert self.x.dtype is not DType.I32, f"TellFeatures {self.x.name}: x is of numbers"

    @property
    def columns(self) -> range:
        return range(self.first, self.first + self.x.width)

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - activations stay in cache
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        step.tell(self.columns, step.read(self.x))
