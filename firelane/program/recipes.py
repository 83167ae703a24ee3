"""Recipes: how a weight is made from the tensors of a checkpoint.

A weight is its pieces stacked along the rows. A piece is one tensor, seen in another shape, its axes
reordered and sliced, then read as rows. So stacked, fused, transposed, interleaved and per-head storage are
differences between recipes; kernels know none of them. Cases, for a matrix [n, k]:

    as it is                          shape=(n, k)
    stored transposed                 shape=(k, n), order=(1, 0)
    pairs (2i, 2i + 1) to halves      view=(heads, d / 2, 2, k), order=(0, 2, 1, 3)
    gate rows of an alternating one   view=(n, 2, k), take=(None, range(1))
    one tensor a layer, by expert     shape=(experts, k, n), order=(0, 2, 1)
    a norm's weight stored as w - 1   shape=(n,), plus=1.0
    halves of 36 rows in room for 40  shape=(n, k), padding=Padding(own=36, room=40)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]


class WeightLayout(Enum):
    """The meaning of a weight's rows, which decides how a backend packs them."""

    PLAIN = "plain"
    """One matrix [n, k], or one vector [n]."""
    GATED = "gated"
    """Gate rows, then as many up rows, of a gated linear op; each pair is needed together."""
    EXPERTS = "experts"
    """[experts, n, k]: a matrix for each expert, or for each head."""
    GATED_EXPERTS = "gated experts"
    """[experts, n, k], each matrix gated."""

    @property
    def is_gated(self) -> bool:
        return self in (WeightLayout.GATED, WeightLayout.GATED_EXPERTS)

    @property
    def by_expert(self) -> bool:
        return self in (WeightLayout.EXPERTS, WeightLayout.GATED_EXPERTS)


@dataclass(frozen=True, kw_only=True)
class Code:
    """The storage of a quantised weight: numbers of `kind`, a scale for each `group` inputs, with or without
    zero points. The weight is what they decode to, rounded to bf16: never another arithmetic."""

    kind: Literal["int4", "uint4", "int8", "e4m3", "e2m1", "iq4"]
    group: int
    scale: Literal["bf16", "f16", "f32", "e8m0", "e4m3"]
    zero: bool = False


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Zeros behind each `own` rows, or columns, so many that they are `room` together."""

    own: int
    room: int
    of_columns: bool = False

    def padded(self, count: int) -> int:
        """Rows, or columns, that so many become."""
        return count // self.own * self.room

    def sources(self, first: int, last: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """For each of first .. last - 1, with zeros counted: the number without zeros, of a zero that of the
        last one before it; and whether it is a zero."""
        group, within = np.divmod(np.arange(first, last), self.room)
        return group * self.own + np.minimum(within, self.own - 1), within >= self.own


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Some rows of a weight: one tensor of the checkpoint, rearranged. Vectors come from tensors of one axis,
    or seen as such; of others the last axis, after all rearrangement, is the inputs, and those before it are
    the rows."""

    tensor: str
    shape: tuple[int, ...]
    """The shape of the tensor in the checkpoint."""
    view: tuple[int, ...] = ()
    """The shape in which the tensor is seen, row-major; its own if empty."""
    order: tuple[int, ...] = ()
    """The order of the axes of that view; as they are if empty."""
    take: tuple[range | None, ...] = ()
    """Indices kept of each axis, in that order; all of an axis that is None or not there."""
    rows: range | None = None
    """The rows kept, after all this; all if None. Steps of one."""
    columns: range | None = None
    """The inputs kept; all if None. Steps of one."""
    plus: float = 0.0
    """Added to every number, in float32."""
    padding: Padding | None = field(
        default=None, repr=False
    )  # else all weights packed so far had other names
    """Zeros put in, before `rows` are counted; none if None. Padded columns are kept whole."""

    def __post_init__(self) -> None:
        if self.is_as_stored:
            return
        view = self.view or self.shape
        assert prod(view) == prod(self.shape), f"{self.tensor}: {self.shape} cannot be seen as {view}"
        assert not self.order or sorted(self.order) == [*range(len(view))], f"{self.tensor}: {self.order}"
        assert len(self.take) <= len(view), f"{self.tensor}: {self.take} of {len(view)} axes"
        assert self.is_vector <= (self.columns is None), f"{self.tensor}: columns of a vector"
        if self.padding is not None:
            pads_columns = self.padding.of_columns
            assert not pads_columns or self.columns is None, f"{self.tensor}: columns of padded ones"
            count = self.grid.columns if pads_columns else prod(self.grid.row_sizes)
            assert count % self.padding.own == 0, f"{self.tensor}: {count} are no groups of {self.padding}"

    @property
    def is_vector(self) -> bool:
        return 1 in (len(self.shape), len(self.view))

    @property
    def height(self) -> int:
        """The number of rows."""
        if self.rows is not None:
            return len(self.rows)
        if not self.is_as_stored:
            found = prod(self.grid.row_sizes)
            return found if self.padding is None or self.padding.of_columns else self.padding.padded(found)
        return prod(self.shape if self.is_vector else self.shape[:-1])

    @property
    def width(self) -> int:
        """The number of inputs, 1 of a vector."""
        if self.columns is not None:
            return len(self.columns)
        if self.padding is not None and self.padding.of_columns:
            return self.padding.padded(self.grid.columns)
        return self.shape[-1] if self.is_as_stored and not self.is_vector else self.grid.columns

    @property
    def is_as_stored(self) -> bool:
        """Whether the rows lie in the tensor one behind the other, whole and unchanged."""
        is_changed = self.view or self.order or self.take or self.plus or self.padding
        return not is_changed and self.columns is None

    @cached_property
    def grid(self) -> Grid:
        sizes = self.view or self.shape
        strides = tuple(prod(sizes[i + 1 :]) for i in range(len(sizes)))
        order = self.order or range(len(sizes))
        kept = [range(sizes[axis]) for axis in order]
        kept[: len(self.take)] = [t or k for t, k in zip(self.take, kept, strict=False)]
        steps = [strides[axis] for axis in order]
        start = sum(k.start * s for k, s in zip(kept, steps, strict=True))
        axes = [(len(k), k.step * s) for k, s in zip(kept, steps, strict=True)]
        columns = (1, 1) if self.is_vector else axes.pop()
        return Grid(start, tuple(n for n, _ in axes), tuple(s for _, s in axes), *columns)

    def offsets(self, first: int, last: int) -> NDArray[np.int64]:
        """Places of the first numbers of rows first .. last - 1 in the tensor, in elements; those behind it
        lie grid.column_stride apart. Padding is not counted."""
        row = np.arange(first, last) + (self.rows.start if self.rows else 0)
        column = self.columns.start * self.grid.column_stride if self.columns else 0
        at = np.full(len(row), self.grid.start + column, np.int64)
        for size, stride in zip(reversed(self.grid.row_sizes), reversed(self.grid.row_strides), strict=True):
            row, index = np.divmod(row, size)
            at += index * stride
        return at

    def cut(self, rows: range, columns: range | None = None) -> Piece:
        """The part of this piece that has those rows and inputs."""
        first, left = self.rows.start if self.rows else 0, self.columns.start if self.columns else 0
        kept = self.columns if columns is None else range(left + columns.start, left + columns.stop)
        return replace(self, rows=range(first + rows.start, first + rows.stop), columns=kept)


@dataclass(frozen=True)
class Grid:
    """Rows and columns of numbers in a flat tensor, by where they lie: the first at `start`, neighbours along
    each axis so many elements apart."""

    start: int
    row_sizes: tuple[int, ...]
    row_strides: tuple[int, ...]
    columns: int
    column_stride: int


def widened(tensor: NDArray[Any]) -> F32:
    """Exactly in float32; uint16 stands for the bits of bf16."""
    if tensor.dtype == np.uint16:
        return (tensor.astype(np.uint32) << 16).view(np.float32)
    return tensor.astype(np.float32, copy=False)
