"""Shares of a step's rows: how the ranks of a stage divide the tokens of a step among them where each
computes whole rows. What they write to the KV cache all of them read: there is one, which all of them have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.values import Cost, Rows, StepShape, Value, own_rows

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class TakeRows(Op):
    """out = those rows of x that are of this rank's tokens: own_rows()."""

    x: Value
    rank: int
    ranks: int
    out: Value

    def __post_init__(self) -> None:
        kinds = self.x.rows, self.out.rows
        assert kinds == (Rows.TOKEN, Rows.OWN), f"TakeRows {self.out.name}: {kinds}"
        assert (self.x.width, self.x.dtype) == (self.out.width, self.out.dtype), f"TakeRows {self.out.name}"

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - rows of this rank's memory
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        mine = own_rows(len(x), self.rank, self.ranks)
        step.write(self.out, x[mine.start : mine.stop])


@dataclass(frozen=True, kw_only=True)
class AwaitCache(Op):
    """The point behind which keys and values of `layer` can be read that other ranks have written in this
    step."""

    layer: int
    ranks: int

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - nothing is moved
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        """Nothing: the group that runs the ranks lets them wait for each other."""


@dataclass(frozen=True, kw_only=True)
class GatherRows(Op):
    """out = rows of all tokens, of which each rank has made its own: on every rank, in the order of tokens,
    which is that of ranks. x and out are F32."""

    x: Value
    ranks: int
    out: Value

    def __post_init__(self) -> None:
        kinds = self.x.rows, self.out.rows
        assert kinds == (Rows.OWN, Rows.TOKEN), f"GatherRows {self.out.name}: {kinds}"
        assert (self.x.width, self.x.dtype) == (self.out.width, self.out.dtype), f"GatherRows {self.out.name}"

    @property
    def sent(self) -> Value:
        return self.x

    def cost(self, shape: StepShape) -> Cost:
        row = self.x.width * self.x.dtype.itemsize
        return Cost(link_bytes=float(shape.share(self.ranks).tokens * row * (self.ranks - 1)))

    def reference(self, step: ReferenceStep) -> None:
        step.write(self.out, np.concatenate(step.received(self.out.name, self.ranks)))
