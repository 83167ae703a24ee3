"""LinearConfig: how a product is spread over the device. Never what it gives: any config of a matrix gives
the same bits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class LinearConfig:
    """row_tile: tokens of a program; features: rows of the matrix of a program, 64 or 128; k_tile: inputs
    of one turn of its loop. parts: segments are summed by programs of their own, and their reader adds them
    up.
    decode_first: a matrix in the window form is decoded into a buffer as a whole, then multiplied as a
    plain one.
    """

    row_tile: int
    features: int = 64
    k_tile: int = 128
    warps: int = 4
    stages: int = 4
    parts: bool = False
    decode_first: bool = False


@dataclass(frozen=True, kw_only=True)
class ProductShape:
    """A product as far as its config depends on it: matrix [rows, k] (gated: gate's and up's rows together),
    with at most max_rows rows of x."""

    rows: int
    k: int
    gated: bool
    max_rows: int
    is_window: bool


MeasuredTable = Mapping[ProductShape, LinearConfig]
"""What was the fastest, of products that were measured (tuning/)."""

FUSED_ROWS = 512  # above, a matrix in the window form is decoded first
PARTS_ROWS = 128  # above, programs are enough without, and parts would cost more traffic than they save


def choose(
    *, matrix_rows: int, k: int, gated: bool, max_rows: int, is_window: bool, table: MeasuredTable | None
) -> LinearConfig:
    """The measured config if there is one, else by rule."""
    shape = ProductShape(rows=matrix_rows, k=k, gated=gated, max_rows=max_rows, is_window=is_window)
    measured = None if table is None else table.get(shape)
    return measured or by_rule(shape)


def by_rule(shape: ProductShape) -> LinearConfig:
    decode_first = shape.is_window and shape.max_rows > FUSED_ROWS
    row_tile = min(max(16, 1 << (shape.max_rows - 1).bit_length()), 256)
    if shape.is_window and not decode_first:
        return _window(shape, row_tile)
    return replace(_plain(shape, row_tile), decode_first=decode_first)


def _window(shape: ProductShape, row_tile: int) -> LinearConfig:
    row_tile = min(row_tile, 64 if shape.gated else 128)
    parts = not shape.gated and shape.max_rows <= PARTS_ROWS
    return LinearConfig(row_tile=row_tile, stages=4 if row_tile <= 32 else 3, parts=parts)


def _plain(shape: ProductShape, row_tile: int) -> LinearConfig:
    if shape.gated:
        row_tile = min(row_tile, 128)
        return LinearConfig(row_tile=row_tile, k_tile=64, warps=8 if row_tile > 64 else 4, stages=4)
    if row_tile <= 64:
        return LinearConfig(row_tile=row_tile, stages=4, parts=shape.max_rows <= PARTS_ROWS)
    return LinearConfig(
        row_tile=row_tile, features=128, k_tile=64, warps=8, stages=4, parts=shape.max_rows <= PARTS_ROWS
    )
