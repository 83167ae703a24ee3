"""SumOrder: in which order the inputs of a product are added up; the bits of a sum follow from that alone."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE, segments
from firelane.program.ops import AllReduce, ExpertLinear, Linear
from firelane.program.program import Program


@dataclass(frozen=True, kw_only=True)
class SumOrder:
    """Sums of `count` runs of inputs, each from the first input on. bounds: None, and runs are equally long
    and added from the first on; or int32 [count + 1], where they begin and the last one ends, a power of two
    of runs, added as a binary tree (program.segments). is_ragged: some bound lies within a tile of inputs.
    """

    count: int
    bounds: Tensor | None = None
    is_ragged: bool = False

    @property
    def is_tree(self) -> bool:
        return self.bounds is not None

    @property
    def levels(self) -> int:
        """Sums that wait at a time, at most, while the runs of a tree are summed one after the other."""
        return self.count.bit_length() - 1


def sequential(rows: int, k: int) -> SumOrder:
    """The order of a product with a matrix [rows, k] that no ranks share."""
    return SumOrder(count=segments(rows, k))


def is_ragged(widths: tuple[int, ...]) -> bool:
    return any(width % K_TILE for width in widths)


def is_segmented(program: Program) -> bool:
    """Whether the bits of its sums are those of any number of ranks (parallel.segments)."""
    return any(
        isinstance(op, AllReduce) or (isinstance(op, Linear | ExpertLinear) and bool(op.segments))
        for op in program.ops
    )
