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
def again(number):
    """The int32 number, such that what follows from it is computed anew: addresses of a big tile would else
    be kept from one use to the next, in registers that the sums need."""
    return tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [number], dtype=tl.int32, is_pure=False, pack=1
    )


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
    data += feature.to(tl.int64) * stride
    rows = tl.arange(0, FEATURES)[:, None] * stride
    if bases is None:
        for at in range(begin, begin + length, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            met = load_rows(x_rows, valid, inputs, k, RAGGED)
            total = tl.dot(tl.load(data + rows + inputs[None, :]), met, total, input_precision="ieee")
    else:
        base = tl.load(bases + feature // FEATURES).to(tl.int32)
        codes += feature.to(tl.int64) * (stride >> 1)
        first_half = tl.arange(0, _HALF)
        second_half = first_half + _HALF
        for at in range(begin, begin + length, 2 * _HALF):
            first_met = load_rows(x_rows, valid, at + first_half, k, RAGGED)
            second_met = load_rows(x_rows, valid, at + second_half, k, RAGGED)
            code = tl.load(codes + (rows >> 1) + ((at >> 1) + first_half)[None, :])
            first = tl.load(data + rows + (at + first_half)[None, :])
            second = tl.load(data + rows + (at + second_half)[None, :])
            total = tl.dot(decode_lower(first, code, base), first_met, total)
            total = tl.dot(decode_upper(second, code, base), second_met, total)
    return total


@triton.jit
def multiply_two(  # limits: exempt (kernel: two tiles of a matrix in either form, and rows)
    data,
    codes,
    bases,
    feature,
    other_feature,
    stride,
    x_rows,
    valid,
    length,
    k,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """multiply() of two tiles of features, over all inputs; rows are read once for both."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    other = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    data += feature.to(tl.int64) * stride
    rows = tl.arange(0, FEATURES)[:, None] * stride
    apart = (other_feature - feature).to(tl.int64) * stride
    if bases is None:
        for at in range(0, length, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            met = load_rows(x_rows, valid, inputs, k, RAGGED)
            weights = data + rows + inputs[None, :]
            total = tl.dot(tl.load(weights), met, total, input_precision="ieee")
            other = tl.dot(tl.load(weights + apart), met, other, input_precision="ieee")
    else:
        base = tl.load(bases + feature // FEATURES).to(tl.int32)
        codes += feature.to(tl.int64) * (stride >> 1)
        other_base = tl.load(bases + other_feature // FEATURES).to(tl.int32)
        first_half = tl.arange(0, _HALF)
        second_half = first_half + _HALF
        for at in range(0, length, 2 * _HALF):
            first_met = load_rows(x_rows, valid, at + first_half, k, RAGGED)
            second_met = load_rows(x_rows, valid, at + second_half, k, RAGGED)
            code = codes + (rows >> 1) + ((at >> 1) + first_half)[None, :]
            first = data + rows + (at + first_half)[None, :]
            second = data + rows + (at + second_half)[None, :]
            some, others = tl.load(code), tl.load(code + (apart >> 1))
            total = tl.dot(decode_lower(tl.load(first), some, base), first_met, total)
            total = tl.dot(decode_upper(tl.load(second), some, base), second_met, total)
            other = tl.dot(decode_lower(tl.load(first + apart), others, other_base), first_met, other)
            other = tl.dot(decode_upper(tl.load(second + apart), others, other_base), second_met, other)
    return total, other
