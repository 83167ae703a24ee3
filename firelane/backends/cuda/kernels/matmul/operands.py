"""Operands of the kernels that multiply with a matrix: pointers, strides and sizes that belong together, as
one argument. A field that is None, or a constexpr, is part of the compiled kernel, as such an argument is.

Triton makes its own tuples of these, whose attributes `values` and `type` hide fields of such names. A device
function takes one with a field that is None, but cannot return it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, Matrix, PlainMatrix, QuantisedMatrix


class EscapeLists(NamedTuple):
    """Escapes of a matrix; numbers: their values."""

    starts: Any
    where: Any
    numbers: Any


class MatrixOperand(NamedTuple):
    """A matrix in any form (matrices.py). Coded: `data` is its `low`. Quantised: `bases` are its bounds, and
    `numbers` and `group_size`, constexprs, are not None. ragged: constexpr, whether inputs are padded."""

    data: Any
    codes: Any
    bases: Any
    scales: Any
    minima: Any
    units: Any
    escapes: EscapeLists
    k: Any
    k_tiles: Any
    ragged: Any
    numbers: Any
    group_size: Any


class RowsOperand(NamedTuple):
    """Rows that meet a matrix; transposed: the same in the transpose (transpose.py), or None."""

    data: Any
    stride: Any
    transposed: Any
    transposed_stride: Any


class TileRows(NamedTuple):
    """Rows of a tile, on the device. rows: where each one begins, of which those that are valid are read;
    transposed: where their first inputs lie in the transpose, read for escapes if it is there."""

    rows: Any
    valid: Any
    transposed: Any
    transposed_stride: Any


class Levels(NamedTuple):
    """Sums of a tree that wait for their neighbours: float32 [levels, rows, features]."""

    data: Any
    stride: Any
    row_stride: Any


class OutputOperand(NamedTuple):
    """Rows of a product's result, and what is added to them: (product + bias) * scale + residual, capped.
    features: of a row. scale, cap: constexprs."""

    data: Any
    stride: Any
    features: Any
    bias: Any
    residual: Any
    residual_stride: Any
    scale: Any
    cap: Any


def matrix_operand(matrix: Matrix) -> MatrixOperand:
    """The matrix in any form, and its escapes."""
    plain = MatrixOperand(
        data=matrix.low if isinstance(matrix, CodedMatrix) else matrix.data,
        codes=None,
        bases=None,
        scales=None,
        minima=None,
        units=None,
        escapes=escape_lists(matrix.escapes),
        k=matrix.k,
        k_tiles=matrix.padded_k // K_TILE,
        ragged=tl.constexpr(matrix.k != matrix.padded_k),
        numbers=None,
        group_size=None,
    )
    match matrix:
        case PlainMatrix():
            return plain
        case CodedMatrix():
            return plain._replace(codes=matrix.codes, bases=matrix.bases)
        case QuantisedMatrix():
            return plain._replace(
                bases=matrix.bounds,
                scales=matrix.scales,
                minima=matrix.minima,
                units=matrix.units,
                numbers=tl.constexpr(matrix.numbers),
                group_size=tl.constexpr(matrix.group_size),
            )


def escape_lists(escapes: Escapes) -> EscapeLists:
    return EscapeLists(starts=escapes.starts, where=escapes.where, numbers=escapes.values)


def rows_operand(x: Tensor, transposed: Tensor | None = None) -> RowsOperand:
    stride = 0 if transposed is None else transposed.stride(0)
    return RowsOperand(data=x, stride=x.stride(0), transposed=transposed, transposed_stride=stride)


def output_operand(
    out: Tensor,
    *,
    features: int,
    bias: Tensor | None,
    residual: Tensor | None = None,
    scale: float = 1.0,
    cap: float = 0.0,
) -> OutputOperand:
    return OutputOperand(
        data=out,
        stride=out.stride(0),
        features=features,
        bias=bias,
        residual=residual,
        residual_stride=0 if residual is None else residual.stride(0),
        scale=tl.constexpr(scale),
        cap=tl.constexpr(cap),
    )
