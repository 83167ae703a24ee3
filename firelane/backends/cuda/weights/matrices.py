"""Matrices in device memory: plain; in the coded form (12 bits a weight, without loss); or as the codes of a
quantised checkpoint.

Rows are padded with zeros to a multiple of ROW_BLOCK, inputs to a multiple of K_TILE. The weights of
GatedLinear are two such matrices below each other: gate rows, padded; then up rows, padded.

A block of ROW_BLOCK rows has a range of 15 exponents, base + 1 .. base + 15: the one with the fewest
escapes, the lowest such. A weight outside of it that is not zero is an escape: it is +0 in the matrix, in
both forms, and stands in the block's list. Its products are summed apart and added last, so that both forms
give the same bits. Where more than one of ESCAPE_SHARE, or more than MAX_BLOCK_ESCAPES of one block, would be
escapes (or the matrix is float32, or its inputs are no multiple of K_TILE) there is no range, in any
form: every weight is in its place and the lists are empty.

    coded form, of a row of K inputs, in tiles of 128 inputs:
      low    uint8 [rows, K]     sign << 7 | mantissa; sign << 7 where the code is 0
      codes  uint8 [rows, K/2]   byte j of a tile: code of input j | code of input j + 64 of the tile << 4
      code   0: zero; c of 1 .. 15: the exponent is base + c

    quantised form: a weight is bf16(scale * code - minimum), in float32, rounded once. Of K inputs:
      data    uint8 [rows, K]     a code of eight bits: an integer with a sign, or a float (e4m3)
              uint8 [rows, K/2]   of four bits: byte j of a tile: code of input j | of input j + 64 << 4; an
                                  integer from 0 on, less 8 where there are no minima, or a float (e2m1)
      scales  [blocks, groups, ROW_BLOCK]   of each group of inputs, and of each row of the block; so minima
      units   [blocks, 1 or 2, K / 256, ROW_BLOCK]   where scales, and minima behind them, are small integers:
                                  what they are multiplied by, in float32
      escapes have the code of zero. With minima there is none: a block has bounds in place of its base, the
      powers of two between which its weights lie, and what decodes to others counts as zero

Such a matrix gives the bits that the bf16 matrix of its numbers gives, in either of the other forms.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import ROW_BLOCK

RANGE = 15  # exponents
BASES = 240  # base + RANGE is at most 254: 255 is infinite
ESCAPE_SHARE = 256
MAX_BLOCK_ESCAPES = 4096
ROW_SHIFT = 24  # of Escapes.where
INT4, INT8, FP8, FP4 = "int4", "int8", "fp8", "fp4"  # numbers that quantised weights are made of
HALF_BYTES = (INT4, FP4)  # two codes a byte


@dataclass(frozen=True, kw_only=True)
class Escapes:
    """The lists of all blocks, behind each other, by increasing row and input within a block.

    starts: int32 [blocks + 1]; where: int32 [count], row within the block << 24 | input; values: the
    matrix's dtype [count]. `where` and `values` have room for at least one entry.
    """

    starts: Tensor
    where: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in (self.starts, self.where, self.values))


@dataclass(frozen=True, kw_only=True)
class PlainMatrix:
    """data: bf16 or float32 [padded rows, padded k], contiguous."""

    data: Tensor
    rows: int
    k: int
    escapes: Escapes

    @property
    def nbytes(self) -> int:
        return self.data.nbytes + self.escapes.nbytes

    @property
    def padded_rows(self) -> int:
        return self.data.shape[0]

    @property
    def padded_k(self) -> int:
        return self.data.shape[1]


@dataclass(frozen=True, kw_only=True)
class CodedMatrix:
    """low: uint8 [padded rows, padded k]; codes: uint8 [padded rows, padded k / 2]; bases: uint8 [blocks]."""

    low: Tensor
    codes: Tensor
    bases: Tensor
    rows: int
    k: int
    escapes: Escapes

    @property
    def nbytes(self) -> int:
        return self.low.nbytes + self.codes.nbytes + self.bases.nbytes + self.escapes.nbytes

    @property
    def padded_rows(self) -> int:
        return self.low.shape[0]

    @property
    def padded_k(self) -> int:
        return self.low.shape[1]


@dataclass(frozen=True, kw_only=True)
class QuantisedMatrix:
    """data: uint8 [padded rows, bytes]; scales, and minima if there are any: float16, bf16 or float32, uint8
    that are exponents of float32 powers of two, or int8 where there are units, float16; bounds: int32
    [blocks, 2], each with the same bf16 in both halves, or None for a matrix without minima or without
    escapes. numbers: INT4, INT8, FP8 or FP4.
    """

    data: Tensor
    scales: Tensor
    minima: Tensor | None
    units: Tensor | None
    bounds: Tensor | None
    numbers: str
    rows: int
    k: int
    escapes: Escapes

    @property
    def nbytes(self) -> int:
        others = sum(t.nbytes for t in (self.minima, self.units, self.bounds) if t is not None)
        return self.data.nbytes + self.scales.nbytes + others + self.escapes.nbytes

    @property
    def padded_rows(self) -> int:
        return self.data.shape[0]

    @property
    def padded_k(self) -> int:
        return self.data.shape[1] * (2 if self.numbers in HALF_BYTES else 1)

    @property
    def group_size(self) -> int:
        """Inputs of a row that share a scale."""
        return self.padded_k // self.scales.shape[1]


Matrix = PlainMatrix | CodedMatrix | QuantisedMatrix


@dataclass(frozen=True, kw_only=True)
class QuantisedForm:
    """Traits of a QuantisedMatrix that kernels depend on, dtypes of scales and minima among them; int8: with
    units."""

    numbers: str
    group_size: int
    scales: torch.dtype
    minima: torch.dtype | None
    bounds: bool


def num_blocks(matrix: Matrix) -> int:
    return matrix.padded_rows // ROW_BLOCK
