"""Collectives: how the ranks that share a model exchange rows. Ranks of one stage add up, or put beside each
other, what each has of a row; the ranks of a stage hand their rows on to those of the next one.

In a program of one rank there are none of them. A backend may move the numbers as it likes, as long as it
adds them in the order that is written here."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.segments import tree_sum
from firelane.program.values import Cost, DType, StepShape, Value, Weight

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep


@dataclass(frozen=True, kw_only=True)
class AllReduce(Op):
    """out = scale * (sum of x over the ranks + bias) + residual, on every rank. The sum is a binary tree in
    the order of the ranks, a power of two of them, in float32. All values are F32 and equally wide; bias and
    residual are the same on all ranks."""

    x: Value
    ranks: int
    bias: Weight | None = None
    scale: float = 1.0
    residual: Value | None = None
    out: Value

    def __post_init__(self) -> None:
        name, width = f"AllReduce {self.out.name}", self.out.width
        assert self.ranks > 1, f"{name}: {self.ranks} ranks"
        assert self.ranks & (self.ranks - 1) == 0, f"{name}: {self.ranks} ranks are no power of two"
        values = [v for v in (self.x, self.residual, self.out) if v is not None]
        assert all(v.width == width for v in values), f"{name}: widths differ"
        assert all(v.dtype is DType.F32 for v in values), f"{name}: all is F32"
        assert all(v.rows is self.out.rows for v in values), f"{name}: row kinds differ"
        assert self.bias is None or self.bias.shape == (width,), f"{name}: bias"

    @property
    def sent(self) -> Value:
        return self.x

    def cost(self, shape: StepShape) -> Cost:
        rows, width = shape.rows(self.x.rows), self.x.width
        moved = 4.0 * rows * width * (self.ranks - 1)
        return Cost(flops=float(rows * width * self.ranks), link_bytes=moved)

    def reference(self, step: ReferenceStep) -> None:
        out = tree_sum(step.received(self.out.name, self.ranks))
        assert out is not None
        if self.bias is not None:
            out = out + step.weight(self.bias)
        out = out * np.float32(self.scale)
        if self.residual is not None:
            out = out + step.read(self.residual)
        step.write(self.out, out)


@dataclass(frozen=True, kw_only=True)
class Gather(Op):
    """out = [x of rank 0 | x of rank 1 | ...], on the first rank: the others need no `out`. widths: of each
    rank's x. name: of what is gathered, the same on all ranks."""

    x: Value
    widths: tuple[int, ...]
    rank: int
    name: str
    out: Value | None = None

    def __post_init__(self) -> None:
        assert self.x.width == self.widths[self.rank], f"Gather {self.name}: x {self.x.width}"
        assert self.out is not None or self.rank > 0, f"Gather {self.name}: the first rank has it"
        if self.out is not None:
            assert self.out.width == sum(self.widths), f"Gather {self.name}: out {self.out.width}"
            assert (self.out.dtype, self.out.rows) == (self.x.dtype, self.x.rows), f"Gather {self.name}"

    @property
    def columns(self) -> range:
        """The place of x in what is gathered."""
        starts = list(accumulate(self.widths, initial=0))
        return range(starts[self.rank], starts[self.rank + 1])

    @property
    def sent(self) -> Value:
        return self.x

    def cost(self, shape: StepShape) -> Cost:
        return Cost(link_bytes=self.x.dtype.itemsize * float(shape.rows(self.x.rows) * self.x.width))

    def reference(self, step: ReferenceStep) -> None:
        if self.out is not None:
            step.write(self.out, np.concatenate(step.received(self.name, len(self.widths)), axis=1))


@dataclass(frozen=True, kw_only=True)
class GatherColumns(Op):
    """out = x of all ranks beside each other, in each of so many slots of a row, + residual, on every rank.
    widths: of each rank's x in a slot."""

    x: Value
    slots: int
    widths: tuple[int, ...]
    residual: Value | None = None
    out: Value

    def __post_init__(self) -> None:
        name = f"GatherColumns {self.out.name}"
        assert self.x.width // self.slots in self.widths, f"{name}: x {self.x.width}"
        assert self.out.width == self.slots * sum(self.widths), f"{name}: out {self.out.width}"
        assert (self.out.dtype, self.out.rows) == (self.x.dtype, self.x.rows), name
        if self.residual is not None:
            assert self.residual.width == self.out.width, f"{name}: residual {self.residual.width}"
            assert self.residual.dtype is self.out.dtype is DType.F32, f"{name}: residual and out are F32"

    @property
    def sent(self) -> Value:
        return self.x

    def cost(self, shape: StepShape) -> Cost:
        row = self.x.dtype.itemsize * self.x.width * (len(self.widths) - 1)
        return Cost(link_bytes=float(shape.rows(self.x.rows) * row))

    def reference(self, step: ReferenceStep) -> None:
        sent = step.received(self.out.name, len(self.widths))
        slots = [x.reshape(len(x), self.slots, -1) for x in sent]
        out = np.concatenate(slots, axis=2).reshape(len(sent[0]), -1)
        step.write(self.out, out if self.residual is None else out + step.read(self.residual))


@dataclass(frozen=True, kw_only=True)
class Send(Op):
    """x, to the rank of the next stage that has the same place in it."""

    x: Value

    @property
    def sent(self) -> Value:
        return self.x

    def cost(self, shape: StepShape) -> Cost:
        return Cost(link_bytes=self.x.dtype.itemsize * float(shape.rows(self.x.rows) * self.x.width))

    def reference(self, step: ReferenceStep) -> None:
        """Nothing: the group that runs the ranks hands x on."""


@dataclass(frozen=True, kw_only=True)
class Receive(Op):
    """out = the value of that name that the stage before sends."""

    out: Value

    def cost(self, shape: StepShape) -> Cost:  # noqa: ARG002 - counted where it is sent
        return Cost()

    def reference(self, step: ReferenceStep) -> None:
        (sent,) = step.received(self.out.name, 1)
        step.write(self.out, sent)


Collective = AllReduce | Gather | GatherColumns | Send | Receive
