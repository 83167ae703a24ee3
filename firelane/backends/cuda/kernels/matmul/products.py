"""Parts of every product with a matrix: tiles of weights [features, inputs] times tiles of rows.

Weights are the left operand: the product instruction then has 64 features and 16 inputs, and any number of
rows, so that one row and thousands get the same sums in the same order. An accumulator takes inputs in
increasing order; how many of them a turn of a loop takes does not show in the result.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.device.shapes import K_TILE
from firelane.backends.cuda.kernels.matmul.coded import decode_lower, decode_upper
from firelane.backends.cuda.kernels.matmul.quantised import half_tile, rows_of, scales_of, units_of

_TILE = tl.constexpr(K_TILE)
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
def halves(tile, FEATURES: tl.constexpr, WIDTH: tl.constexpr):
    """The first and the second half of a tile's rows: [FEATURES, WIDTH / 2] each."""
    return tl.split(tl.permute(tl.reshape(tile, (FEATURES, 2, WIDTH // 2)), (0, 2, 1)))


@triton.jit
def load_rows(  # limits: exempt (kernel: rows, and what of them counts)
    x_rows, valid, inputs, begin, k, RAGGED: tl.constexpr
):
    """[inputs, rows] of x. What lies before `begin`, if that is no None, behind k, or in rows that are not
    valid, counts as 0: it may be NaN."""
    mask = valid[None, :]
    if begin is not None:
        mask = mask & (inputs >= begin)[:, None]
    if RAGGED:
        mask = mask & (inputs < k)[:, None]
    return tl.load(x_rows[None, :] + inputs[:, None], mask=mask, other=0.0)


@triton.jit
def multiply(  # limits: exempt (kernel: a tile of a matrix in any form, and rows)
    data,
    codes,
    bases,
    scales,
    minima,
    units,
    feature,
    k_tiles,
    x_rows,
    valid,
    first_tile,
    end_tile,
    begin,
    k,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    RAGGED: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """float32 [FEATURES, ROW_TILE]: features feature .. of the matrix times rows, over its tiles of inputs
    first_tile .. end_tile, of k_tiles, and there from `begin` to k. NUMBERS None: scales and minima are, too,
    then; codes None: the plain form. But for that one FEATURES are a block of rows, and K_TILE does not
    matter."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    rows = tl.arange(0, FEATURES)[:, None]
    if NUMBERS is not None:
        block = feature // FEATURES
        data, scales = rows_of(data, block, k_tiles, NUMBERS), scales_of(scales, block, k_tiles, GROUP_SIZE)
        low, high = None, None
        if units is not None:
            units = units_of(units, block, k_tiles, minima is not None)
        if minima is not None:
            minima = scales_of(minima, block, k_tiles, GROUP_SIZE)
        if bases is not None:
            low, high = tl.load(bases + 2 * block), tl.load(bases + 2 * block + 1)
        for tile in range(first_tile, end_tile):
            half = tl.arange(0, _HALF) + tile * _TILE
            lower_met = load_rows(x_rows, valid, half, begin, k, RAGGED)
            upper_met = load_rows(x_rows, valid, half + _HALF, begin, k, RAGGED)
            weights = half_tile(
                data, scales, minima, units, low, high, tile, k_tiles, False,
                NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            total = tl.dot(weights, lower_met, total)
            weights = half_tile(
                data, scales, minima, units, low, high, tile, k_tiles, True,
                NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            total = tl.dot(weights, upper_met, total)
    elif codes is None:
        data += feature.to(tl.int64) * (k_tiles * _TILE) + rows * (k_tiles * _TILE)
        for at in range(first_tile * _TILE, end_tile * _TILE, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            met = load_rows(x_rows, valid, inputs, begin, k, RAGGED)
            total = tl.dot(tl.load(data + inputs[None, :]), met, total, input_precision="ieee")
    else:
        data += feature.to(tl.int64) * (k_tiles * _TILE) + rows * (k_tiles * _TILE)
        codes += feature.to(tl.int64) * (k_tiles * _HALF) + rows * (k_tiles * _HALF)
        base = tl.load(bases + feature // FEATURES).to(tl.int32)
        for tile in range(first_tile, end_tile):
            half = tl.arange(0, _HALF)
            lower, upper = half + tile * _TILE, half + (tile * _TILE + _HALF)
            code = tl.load(codes + (half + tile * _HALF)[None, :])
            lower_met = load_rows(x_rows, valid, lower, begin, k, RAGGED)
            upper_met = load_rows(x_rows, valid, upper, begin, k, RAGGED)
            lower_low, upper_low = tl.load(data + lower[None, :]), tl.load(data + upper[None, :])
            total = tl.dot(decode_lower(lower_low, code, base), lower_met, total)
            total = tl.dot(decode_upper(upper_low, code, base), upper_met, total)
    return total


@triton.jit
def multiply_two(  # limits: exempt (kernel: two tiles of a matrix in any form, and rows)
    data,
    codes,
    bases,
    scales,
    minima,
    units,
    feature,
    distance,
    k_tiles,
    x_rows,
    valid,
    k,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    RAGGED: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
):
    """multiply() over all inputs, of features feature .. and of those that stand `distance` rows behind;
    rows are read once for both."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    other = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    rows = tl.arange(0, FEATURES)[:, None]
    if NUMBERS is not None:
        block, other_block = feature // FEATURES, (feature + distance) // FEATURES
        other_data = rows_of(data, other_block, k_tiles, NUMBERS)
        other_scales = scales_of(scales, other_block, k_tiles, GROUP_SIZE)
        data, scales = rows_of(data, block, k_tiles, NUMBERS), scales_of(scales, block, k_tiles, GROUP_SIZE)
        other_minima, other_units, low, high, other_low, other_high = None, None, None, None, None, None
        if units is not None:
            other_units = units_of(units, other_block, k_tiles, minima is not None)
            units = units_of(units, block, k_tiles, minima is not None)
        if minima is not None:
            other_minima = scales_of(minima, other_block, k_tiles, GROUP_SIZE)
            minima = scales_of(minima, block, k_tiles, GROUP_SIZE)
        if bases is not None:
            low, high = tl.load(bases + 2 * block), tl.load(bases + 2 * block + 1)
            other_low, other_high = tl.load(bases + 2 * other_block), tl.load(bases + 2 * other_block + 1)
        for tile in range(k_tiles):
            half = tl.arange(0, _HALF) + tile * _TILE
            lower_met = load_rows(x_rows, valid, half, None, k, RAGGED)
            upper_met = load_rows(x_rows, valid, half + _HALF, None, k, RAGGED)
            weights = half_tile(
                data, scales, minima, units, low, high, tile, k_tiles, False,
                NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            total = tl.dot(weights, lower_met, total)
            weights = half_tile(
                data, scales, minima, units, low, high, tile, k_tiles, True,
                NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            total = tl.dot(weights, upper_met, total)
            weights = half_tile(
                other_data, other_scales, other_minima, other_units, other_low, other_high, tile, k_tiles,
                False, NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            other = tl.dot(weights, lower_met, other)
            weights = half_tile(
                other_data, other_scales, other_minima, other_units, other_low, other_high, tile, k_tiles,
                True, NUMBERS, GROUP_SIZE,
            )  # fmt: skip
            other = tl.dot(weights, upper_met, other)
    elif codes is None:
        data += feature.to(tl.int64) * (k_tiles * _TILE) + rows * (k_tiles * _TILE)
        other_data = data + distance.to(tl.int64) * (k_tiles * _TILE)
        for at in range(0, k_tiles * _TILE, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            met = load_rows(x_rows, valid, inputs, None, k, RAGGED)
            total = tl.dot(tl.load(data + inputs[None, :]), met, total, input_precision="ieee")
            other = tl.dot(tl.load(other_data + inputs[None, :]), met, other, input_precision="ieee")
    else:
        data += feature.to(tl.int64) * (k_tiles * _TILE) + rows * (k_tiles * _TILE)
        other_data = data + distance.to(tl.int64) * (k_tiles * _TILE)
        codes += feature.to(tl.int64) * (k_tiles * _HALF) + rows * (k_tiles * _HALF)
        other_codes = codes + distance.to(tl.int64) * (k_tiles * _HALF)
        base = tl.load(bases + feature // FEATURES).to(tl.int32)
        other_base = tl.load(bases + (feature + distance) // FEATURES).to(tl.int32)
        for tile in range(k_tiles):
            half = tl.arange(0, _HALF)
            lower, upper = half + tile * _TILE, half + (tile * _TILE + _HALF)
            lower_met = load_rows(x_rows, valid, lower, None, k, RAGGED)
            upper_met = load_rows(x_rows, valid, upper, None, k, RAGGED)
            code = tl.load(codes + (half + tile * _HALF)[None, :])
            low = tl.load(data + lower[None, :])
            total = tl.dot(decode_lower(low, code, base), lower_met, total)
            low = tl.load(data + upper[None, :])
            total = tl.dot(decode_upper(low, code, base), upper_met, total)
            code = tl.load(other_codes + (half + tile * _HALF)[None, :])
            low = tl.load(other_data + lower[None, :])
            other = tl.dot(decode_lower(low, code, other_base), lower_met, other)
            low = tl.load(other_data + upper[None, :])
            other = tl.dot(decode_upper(low, code, other_base), upper_met, other)
    return total, other
