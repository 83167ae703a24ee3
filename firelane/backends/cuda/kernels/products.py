"""What every product with a matrix is made of: tiles of weights [features, inputs] times tiles of rows.

Weights are the left operand: the product instruction then has 64 features and 16 inputs, and any number of
rows, so that one row and thousands get the same sums in the same order. An accumulator takes inputs in
increasing order; how many of them a turn of a loop takes does not show in the result.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.window import decode_lower, decode_upper
from firelane.backends.cuda.shapes import K_TILE

_HALF = tl.constexpr(K_TILE // 2)


@triton.jit
def place_tile(program, feature_tiles, row_tiles, GROUP: tl.constexpr):
    """(feature tile, row tile) of a program. GROUP row tiles meet a tile of features one after the other, so
    that what runs at the same time shares both weights and rows in the cache."""
    in_group = GROUP * feature_tiles
    first = program // in_group * GROUP
    size = min(row_tiles - first, GROUP)
    within = program % in_group
    return within // size, first + within % size


@triton.jit
def load_rows(x_rows, valid, inputs, k, RAGGED: tl.constexpr):
    """[inputs, rows] of x. What lies behind k, or in rows that are not valid, counts as 0: it may be NaN."""
    mask = valid[None, :]
    if RAGGED:
        mask = mask & (inputs < k)[:, None]
    return tl.load(x_rows[None, :] + inputs[:, None], mask=mask, other=0.0)


@triton.jit
def multiply(  # limits: exempt (kernel: a tile of a matrix in either form, and rows)
    data,
    codes,
    bases,
    feature,
    stride,
    x_rows,
    valid,
    begin,
    length,
    k,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """float32 [FEATURES, ROW_TILE]: features feature .. of the matrix times rows, over `length` inputs from
    `begin` on. bases None: the plain form."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    rows = (feature + tl.arange(0, FEATURES)).to(tl.int64) * stride
    if bases is None:
        for at in range(begin, begin + length, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            weights = tl.load(data + rows[:, None] + inputs[None, :])
            total = tl.dot(
                weights, load_rows(x_rows, valid, inputs, k, RAGGED), total, input_precision="ieee"
            )
    else:
        base = tl.load(bases + feature // FEATURES).to(tl.int32)
        first_half = tl.arange(0, _HALF)
        second_half = first_half + _HALF
        for at in range(begin, begin + length, 2 * _HALF):
            code = tl.load(codes + (rows >> 1)[:, None] + ((at >> 1) + first_half)[None, :])
            lower = tl.load(data + rows[:, None] + (at + first_half)[None, :])
            upper = tl.load(data + rows[:, None] + (at + second_half)[None, :])
            total = tl.dot(
                decode_lower(lower, code, base), load_rows(x_rows, valid, at + first_half, k, RAGGED), total
            )
            total = tl.dot(
                decode_upper(upper, code, base), load_rows(x_rows, valid, at + second_half, k, RAGGED), total
            )
    return total
