"""Reading the rows of a weight's pieces: only what they need, rearranged as their recipes say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from firelane.program.recipes import Padding, Piece, widened
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format, smallest_holding
from firelane.weights.packing.plan import takes
from firelane.weights.storage.reader import ReadBuffer

SPARSE = 4
"""A range of a tensor of which fewer than one in so many elements is needed is not read as a whole."""


def read_piece(
    checkpoint: Checkpoint, piece: Piece, rows: range, buffer: ReadBuffer | None = None
) -> NDArray[Any]:
    """Rows of a piece, [rows, k] or of a vector [rows]: in the tensor's dtype as Checkpoint.tensor() gives
    it, in float32 where something is added. Safe from many threads. Rows that the tensor holds as they are
    lie in `buffer`, if there is one, until it is used again. Raises CheckpointError."""
    if piece.padding is not None:
        return _padded(checkpoint, piece, piece.padding, rows)
    if piece.is_as_stored:
        first = rows.start + (piece.rows.start if piece.rows else 0)
        flat = checkpoint.elements(
            piece.tensor, first * piece.width, (first + len(rows)) * piece.width, buffer
        )
        return flat if piece.is_vector else flat.reshape(len(rows), piece.width)
    values = _gathered(checkpoint, piece, rows)
    values = widened(values) + np.float32(piece.plus) if piece.plus else values
    return values[:, 0] if piece.is_vector else values


def _padded(checkpoint: Checkpoint, piece: Piece, padding: Padding, rows: range) -> NDArray[Any]:
    bare, first = replace(piece, padding=None, rows=None), piece.rows.start if piece.rows else 0
    if padding.of_columns:
        values = read_piece(checkpoint, bare, range(first + rows.start, first + rows.stop))
        at, is_zero = padding.sources(0, piece.width)
        return np.where(is_zero, values.dtype.type(0), values[:, at])
    at, is_zero = padding.sources(first + rows.start, first + rows.stop)
    values = read_piece(checkpoint, bare, range(int(at[0]), int(at[-1]) + 1))[at - at[0]]
    values[is_zero] = 0
    return values


def _gathered(checkpoint: Checkpoint, piece: Piece, rows: range) -> NDArray[Any]:
    at = piece.offsets(rows.start, rows.stop)
    reach = (piece.width - 1) * piece.grid.column_stride
    low, high = int(at.min()), int(at.max()) + reach + 1
    sparse = high - low > SPARSE * len(rows) * piece.width
    flat = checkpoint.elements(piece.tensor, low, high, sparse=sparse)
    size = flat.itemsize
    starts = as_strided(
        flat,
        shape=(len(flat) - reach, piece.width),
        strides=(size, piece.grid.column_stride * size),
        writeable=False,
    )
    return starts[at - low]


def coded_format(checkpoint: Checkpoint, weight: Weight) -> Format | None:
    """The packed format that keeps the checkpoint's own codes of a quantised matrix, where all pieces have
    codes and are rows of them; else None. Of pieces in several formats the smallest that holds all of them,
    and that can begin and end where rows are cut."""
    formats = {checkpoint.format(tensor) for tensor in weight.tensors}
    known = [format_ for format_ in formats if format_ is not None]
    if len(known) < len(formats) or not all(_keeps_groups(checkpoint, p) for p in weight.pieces):
        return None
    starts = [piece.columns.start for piece in weight.pieces if piece.columns]
    found = smallest_holding(known, gcd(weight.k, *starts))
    return found if found is not None and takes(weight, found) else None


def _keeps_groups(checkpoint: Checkpoint, piece: Piece) -> bool:
    """Whether its rows are runs of rows of the tensor; or of columns, where codes are."""
    if piece.is_vector or piece.plus or piece.padding:
        return False
    if checkpoint.codes_by_columns(piece.tensor):
        return _is_of_columns(piece)
    width = piece.shape[-1]
    places = (*piece.grid.row_strides, piece.grid.start)
    grid = piece.grid
    return grid.columns == width and grid.column_stride == 1 and not any(s % width for s in places)


def _is_of_columns(piece: Piece) -> bool:
    """Whether its rows are columns of the tensor's matrices."""
    inputs, width = piece.shape[-2:]
    grid, size = piece.grid, inputs * width
    within = [(n - 1) * s for n, s in zip(grid.row_sizes, grid.row_strides, strict=True) if s % size]
    return grid.columns == inputs and grid.column_stride == width and grid.start % size + sum(within) < width


def read_codes(checkpoint: Checkpoint, piece: Piece, rows: range) -> Codes:
    """Codes of these rows of a piece of a weight that has a coded_format(), as the checkpoint has them."""
    at = piece.offsets(rows.start, rows.stop)
    width = piece.shape[-1]
    if checkpoint.codes_by_columns(piece.tensor):
        matrix, column = np.divmod(at, piece.shape[-2] * width)
        at = matrix * width + column % width
    else:
        at //= width
    low, high = int(at.min()), int(at.max()) + 1
    found = checkpoint.codes(piece.tensor, low, high).taken(at - low)
    return found if piece.columns is None else found.cut(piece.columns)


def contiguous(weight: Weight, rows: NDArray[np.int64]) -> Iterator[tuple[int, Piece, range]]:
    """Places that the rows of a weight (counted over all matrices, -1: none) are read from, in as few reads
    as possible: the first row of each, and the rows of which piece."""
    wanted = np.unique(rows[rows >= 0])
    for run in np.split(wanted, np.flatnonzero(np.diff(wanted) != 1) + 1):
        at, end = int(run[0]), int(run[-1]) + 1
        for piece, within in weight.spans(at, end):
            yield at, piece, within
            at += len(within)
