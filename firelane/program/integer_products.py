"""Integer products: rows rounded to eight bits, times matrices of whole numbers with scales. The definition,
and the oracle of kernel tests.

A group of inputs of a row (32 of them, 16 where 32 do not divide all segments) has a scale, its largest size
over 127, in float32; its codes are the inputs times 127 over that size, rounded to the nearest whole number,
ties to even. Of each group of the row, or of the matrix where that one is smaller, the dot product of codes
is exact, and

    sum += scale of the matrix * (scale of the row * dot product)
    sum += negated minimum of the matrix * (scale of the row * sum of the row's codes)

each operation in float32, the second line where a matrix has minima: one group after the other, segment by
segment, segments as a tree (program.segments).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.program.segments import segment_ranges, tree_sum

F32 = NDArray[np.float32]
GROUP = 32
SMALL_GROUP = 16
LARGEST = 127
LEAST_COUNTED = np.float32(2.0**-100)
"""A group of inputs none of which is larger counts as zeros: its scale would have no inverse."""


@dataclass(frozen=True)
class IntegerMatrix:
    """A quantised matrix, number by number scales * numbers - minima. numbers: whole ones, [outputs, inputs];
    scales and minima: float32 [outputs, groups]."""

    numbers: NDArray[np.int8]
    scales: F32
    minima: F32 | None = None

    @property
    def group(self) -> int:
        return self.numbers.shape[1] // self.scales.shape[1]


def row_group(inputs: int, segments: Sequence[int] = ()) -> int:
    """Inputs that share a scale in a row."""
    return SMALL_GROUP if any(width % GROUP for width in (inputs, *segments)) else GROUP


def rounded_rows(x: F32, group: int) -> tuple[NDArray[np.int32], F32]:
    """Codes [rows, inputs] and scales [rows, groups]; of a group with a number that is not finite the scale
    is NaN."""
    groups = x.reshape(len(x), -1, group)
    finite = np.logical_and.reduce(np.isfinite(groups), axis=2)
    largest = np.where(finite, np.abs(groups).max(axis=2), np.float32(0))
    counts = largest >= LEAST_COUNTED
    inverse = np.divide(np.float32(LARGEST), largest, out=np.zeros_like(largest), where=counts)
    scales = np.where(counts, largest / np.float32(LARGEST), np.float32(0))
    codes = np.rint(np.where(finite[:, :, None], groups, np.float32(0)) * inverse[:, :, None])
    return codes.astype(np.int32).reshape(x.shape), np.where(finite, scales, np.float32(np.nan))


def integer_product(x: F32, matrix: IntegerMatrix, segments: Sequence[int] = ()) -> F32:
    """x times the transposed matrix, the inputs in segments of these widths, in one if there are none."""
    group = row_group(x.shape[1], segments)
    unit = min(group, matrix.group)
    codes, scales = rounded_rows(x, group)
    scales = np.repeat(scales, group // unit, axis=1)
    dots = _dots(codes, matrix.numbers.astype(np.int32), unit).astype(np.float32)
    weights = np.repeat(matrix.scales, matrix.group // unit, axis=1)
    scaled = (scales.T[:, :, None] * dots).astype(np.float32)
    terms = [(weights.T[:, None, :] * scaled).astype(np.float32)]
    if matrix.minima is not None:
        least = np.repeat(-matrix.minima, matrix.group // unit, axis=1)
        sums = scales * codes.reshape(len(x), -1, unit).sum(axis=2).astype(np.float32)
        terms.append((least.T[:, None, :] * sums.T[:, :, None]).astype(np.float32))
    ranges = segment_ranges([width // unit for width in segments or (x.shape[1],)])
    out = tree_sum([_in_order(terms, units) if units else None for units in ranges])
    assert out is not None
    return out


def _dots(codes: NDArray[np.int32], numbers: NDArray[np.int32], unit: int) -> NDArray[np.float64]:
    """Dot products of codes and numbers in each unit of inputs, [units, rows, outputs]: whole numbers, exact
    in float64."""
    rows, columns = (part.reshape(len(part), -1, unit).transpose(1, 0, 2) for part in (codes, numbers))
    return rows.astype(np.float64) @ columns.transpose(0, 2, 1).astype(np.float64)


def _in_order(terms: Sequence[F32], units: range) -> F32:
    out = np.zeros(terms[0].shape[1:], np.float32)
    for unit in units:
        for term in terms:
            out += term[unit]
    return out
