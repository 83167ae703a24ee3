"""Low-rank adapters (Hu et al., "LoRA", 2021): what the adapter of each row's sequence adds to a product, by
way of a few numbers a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from firelane.contract import LowRank
from firelane.program.ops.base import Op
from firelane.program.recipes import Piece, widened
from firelane.program.values import Cost, DType, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

F32 = NDArray[np.float32]
RANK_UNIT = 16
"""Each part of a row of shrunk numbers has room for a multiple of so many."""


@dataclass(frozen=True, kw_only=True)
class LowRankPart:
    """The rows of a weight that come from one module of the checkpoint."""

    module: str
    shape: tuple[int, int]
    """That of the module's own weight, [n, k]."""
    pieces: tuple[tuple[int, Piece], ...]
    """Each piece that is made of it, behind the weight's row where it begins."""

    def __hash__(self) -> int:
        """The hash of the name alone."""
        return hash(self.module)

    def rows(self, height: int) -> NDArray[np.int64]:
        """int64 [height]: for each row of the weight the row of the module that it is; -1 of others."""
        found = np.full(height, -1, np.int64)
        for first, piece in self.pieces:
            found[first : first + piece.height] = piece.offsets(0, piece.height) // self.shape[1]
        return found


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """The products of one weight that adapters change: its parts, and the room for their ranks, a multiple of
    RANK_UNIT. adapters: the number of places."""

    weight: str
    parts: tuple[LowRankPart, ...]
    n: int
    k: int
    rank: int
    adapters: int

    def __post_init__(self) -> None:
        assert self.rank % RANK_UNIT == 0, f"{self.weight}: rank {self.rank} is no multiple of {RANK_UNIT}"

    def __hash__(self) -> int:
        """The hash of the name alone."""
        return hash(self.weight)

    @property
    def width(self) -> int:
        """Numbers of a row between the two factors."""
        return len(self.parts) * self.rank

    def cost(self, shape: StepShape, rows: int, numbers: int) -> Cost:
        """That of one factor of so many numbers, if each sequence has an adapter of its own."""
        read = 2.0 * numbers * min(shape.sequences, self.adapters)
        return Cost(flops=2.0 * rows * numbers, weight_bytes=read)


@dataclass(frozen=True, kw_only=True)
class LoraShrink(Op):
    """out[t] = scale * a · x[t] for the factor `a` of each part's module in the adapter of row t, part behind
    part, `rank` numbers each; zeros where the adapter does not change it, and behind its rank. In float32."""

    x: Value
    adapted: Adapted
    out: Value

    def __post_init__(self) -> None:
        sizes = (self.adapted.k, self.adapted.width)
        assert (self.x.width, self.out.width) == sizes, f"LoraShrink {self.out.name}: {self.x}, {self.out}"
        assert self.out.dtype is DType.F32, f"LoraShrink {self.out.name}: out is F32"

    def cost(self, shape: StepShape) -> Cost:
        return self.adapted.cost(shape, shape.rows(self.x.rows), self.adapted.width * self.adapted.k)

    def reference(self, step: ReferenceStep) -> None:
        x = step.read(self.x)
        out = np.zeros((len(x), self.out.width), np.float32)
        for number, part in enumerate(self.adapted.parts):
            first = number * self.adapted.rank
            for rows, factors in _of_rows(step, self.x, part):
                shrunk = x[rows] @ widened(factors.a).T * np.float32(factors.scale)
                out[rows, first : first + factors.rank] = shrunk
        step.write(self.out, out)


@dataclass(frozen=True, kw_only=True)
class LoraExpand(Op):
    """out[t] = residual[t] + scale * b · y[t], where the rows of the factor `b` of each part's module in the
    adapter of row t stand where the weight has them; residual: zeros without. In float32, in increasing order
    of the rank."""

    y: Value
    adapted: Adapted
    residual: Value | None = None
    scale: float = 1.0
    out: Value

    def __post_init__(self) -> None:
        sizes = (self.adapted.width, self.adapted.n)
        assert (self.y.width, self.out.width) == sizes, f"LoraExpand {self.out.name}: {self.y}, {self.out}"
        assert self.out.dtype is DType.F32, f"LoraExpand {self.out.name}: out is F32"
        if self.residual is not None:
            assert self.residual.width == self.out.width, f"LoraExpand {self.out.name}: {self.residual}"

    def cost(self, shape: StepShape) -> Cost:
        return self.adapted.cost(shape, shape.rows(self.y.rows), self.adapted.rank * self.adapted.n)

    def reference(self, step: ReferenceStep) -> None:
        y = step.read(self.y)
        out = np.zeros((len(y), self.out.width), np.float32)
        for number, part in enumerate(self.adapted.parts):
            first, module_rows = number * self.adapted.rank, part.rows(self.adapted.n)
            columns = np.flatnonzero(module_rows >= 0)
            for rows, factors in _of_rows(step, self.y, part):
                b = widened(factors.b)[module_rows[columns]]
                out[np.ix_(rows, columns)] = y[rows, first : first + factors.rank] @ b.T
        out *= np.float32(self.scale)
        step.write(self.out, out if self.residual is None else out + step.read(self.residual))


def _of_rows(step: ReferenceStep, value: Value, part: LowRankPart) -> list[tuple[NDArray[np.intp], LowRank]]:
    """Rows of sequences with one adapter, and what that has for the part's module."""
    places = step.adapter_places(value.rows)
    found = [(place, step.adapters.get(place, {}).get(part.module)) for place in set(places.tolist())]
    return [(np.flatnonzero(places == place), factors) for place, factors in found if factors is not None]
