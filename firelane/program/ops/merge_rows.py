"""MergeRows: rows of images in place of rows of tokens, or added to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from firelane.program.ops.base import Op
from firelane.program.values import Cost, DType, StepShape, Value

if TYPE_CHECKING:
    from firelane.program.reference_step import ReferenceStep

PLAIN, PLACED, IMAGE = 0.0, 1.0, 2.0
"""Kinds of token rows, in column 0 of their places: text whose position is its index; text behind an image,
whose position is another one; a row of an image. Columns 1 to 3 are a position's time, row and column."""
PLACE_WIDTH = 4


@dataclass(frozen=True, kw_only=True)
class MergeRows(Op):
    """out[t] = rows[t] where row t is of an image, plus x[t] if `adds`; else x[t]. places: F32
    [PLACE_WIDTH], as in PLACE_WIDTH. x, rows and out: F32 of one width."""

    x: Value
    rows: Value
    places: Value
    adds: bool = False
    out: Value

    def __post_init__(self) -> None:
        name = f"MergeRows {self.out.name}"
        assert self.x.width == self.rows.width == self.out.width, f"{name}: widths differ"
        assert self.places.width == PLACE_WIDTH, f"{name}: places of {self.places.width} numbers"
        values = (self.x, self.rows, self.places, self.out)
        assert all(value.dtype is DType.F32 for value in values), f"{name}: all are F32"

    def cost(self, shape: StepShape) -> Cost:
        return Cost(flops=float(self.adds * shape.tokens * self.out.width))

    def reference(self, step: ReferenceStep) -> None:
        x, rows = step.read(self.x), step.read(self.rows)
        is_image = step.read(self.places)[:, :1] == IMAGE
        step.write(self.out, np.where(is_image, x + rows if self.adds else rows, x))
