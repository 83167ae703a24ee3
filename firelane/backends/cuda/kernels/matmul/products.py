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
from firelane.backends.cuda.kernels.matmul.quantised import half_tile

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
def finished(out, total, features, tokens, mask):
    """(total + bias) * scale + residual, of so many features and rows of `out`, an OutputOperand."""
    if out.bias is not None:
        total += tl.load(out.bias + features, mask=features < out.features, other=0.0).to(tl.float32)[:, None]
    if out.scale != 1.0:
        total *= out.scale
    if out.residual is not None:
        places = out.residual + tokens[None, :] * out.residual_stride + features[:, None]
        total += tl.load(places, mask=mask, other=0.0)
    return total


@triton.jit
def load_rows(met, inputs, begin, k, RAGGED: tl.constexpr):
    """[inputs, rows] of x. What lies before `begin`, if that is no None, behind k, or in rows that are not
    valid, counts as 0: it may be NaN."""
    mask = met.valid[None, :]
    if begin is not None:
        mask = mask & (inputs >= begin)[:, None]
    if RAGGED:
        mask = mask & (inputs < k)[:, None]
    return tl.load(met.rows[None, :] + inputs[:, None], mask=mask, other=0.0)


@triton.jit
def multiply(
    matrix,
    feature,
    met,
    first_tile,
    end_tile,
    begin,
    k,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
):
    """float32 [FEATURES, ROW_TILE]: features feature .. of the matrix times rows (TileRows), over its tiles
    of inputs first_tile .. end_tile, and there from `begin` to k. But for the plain form FEATURES are a block
    of rows, and K_TILE does not matter."""
    ragged: tl.constexpr = matrix.ragged or begin is not None  # pyright: ignore[reportAssignmentType]
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    rows = tl.arange(0, FEATURES)[:, None]
    if matrix.numbers is not None:
        block = feature // FEATURES
        low, high = None, None
        if matrix.bases is not None:
            low, high = tl.load(matrix.bases + 2 * block), tl.load(matrix.bases + 2 * block + 1)
        for tile in range(first_tile, end_tile):
            half = tl.arange(0, _HALF) + tile * _TILE
            lower = load_rows(met, half, begin, k, ragged)
            upper = load_rows(met, half + _HALF, begin, k, ragged)
            total = tl.dot(half_tile(matrix, block, low, high, tile, False), lower, total)
            total = tl.dot(half_tile(matrix, block, low, high, tile, True), upper, total)
    elif matrix.codes is None:
        data = plain_rows(matrix, feature, rows)
        for at in range(first_tile * _TILE, end_tile * _TILE, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            x = load_rows(met, inputs, begin, k, ragged)
            total = tl.dot(tl.load(data + inputs[None, :]), x, total, input_precision="ieee")
    else:
        data, codes = plain_rows(matrix, feature, rows), code_rows(matrix, feature, rows)
        base = tl.load(matrix.bases + feature // FEATURES).to(tl.int32)
        for tile in range(first_tile, end_tile):
            half = tl.arange(0, _HALF)
            lower, upper = half + tile * _TILE, half + (tile * _TILE + _HALF)
            code = tl.load(codes + (half + tile * _HALF)[None, :])
            lower_x = load_rows(met, lower, begin, k, ragged)
            upper_x = load_rows(met, upper, begin, k, ragged)
            lower_low, upper_low = tl.load(data + lower[None, :]), tl.load(data + upper[None, :])
            total = tl.dot(decode_lower(lower_low, code, base), lower_x, total)
            total = tl.dot(decode_upper(upper_low, code, base), upper_x, total)
    return total


@triton.jit
def plain_rows(matrix, feature, rows):
    """Pointers to where rows of the matrix, or of its lower bytes, begin."""
    return matrix.data + (feature.to(tl.int64) * (matrix.k_tiles * _TILE) + rows * (matrix.k_tiles * _TILE))


@triton.jit
def code_rows(matrix, feature, rows):
    """Pointers to where the codes of rows of the matrix begin."""
    return matrix.codes + (feature.to(tl.int64) * (matrix.k_tiles * _HALF) + rows * (matrix.k_tiles * _HALF))


@triton.jit
def multiply_two(
    matrix,
    feature,
    distance,
    met,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
):
    """multiply() over all inputs, of features feature .. and of those that stand `distance` rows behind;
    rows are read once for both."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    other = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    rows = tl.arange(0, FEATURES)[:, None]
    if matrix.numbers is not None:
        block, other_block = feature // FEATURES, (feature + distance) // FEATURES
        low, high, other_low, other_high = None, None, None, None
        if matrix.bases is not None:
            low, high = tl.load(matrix.bases + 2 * block), tl.load(matrix.bases + 2 * block + 1)
            other_low = tl.load(matrix.bases + 2 * other_block)
            other_high = tl.load(matrix.bases + 2 * other_block + 1)
        for tile in range(matrix.k_tiles):
            half = tl.arange(0, _HALF) + tile * _TILE
            lower = load_rows(met, half, None, matrix.k, matrix.ragged)
            upper = load_rows(met, half + _HALF, None, matrix.k, matrix.ragged)
            total = tl.dot(half_tile(matrix, block, low, high, tile, False), lower, total)
            total = tl.dot(half_tile(matrix, block, low, high, tile, True), upper, total)
            other = tl.dot(half_tile(matrix, other_block, other_low, other_high, tile, False), lower, other)
            other = tl.dot(half_tile(matrix, other_block, other_low, other_high, tile, True), upper, other)
    elif matrix.codes is None:
        data = plain_rows(matrix, feature, rows)
        other_data = data + distance.to(tl.int64) * (matrix.k_tiles * _TILE)
        for at in range(0, matrix.k_tiles * _TILE, K_TILE):
            inputs = at + tl.arange(0, K_TILE)
            x = load_rows(met, inputs, None, matrix.k, matrix.ragged)
            total = tl.dot(tl.load(data + inputs[None, :]), x, total, input_precision="ieee")
            other = tl.dot(tl.load(other_data + inputs[None, :]), x, other, input_precision="ieee")
    else:
        data, codes = plain_rows(matrix, feature, rows), code_rows(matrix, feature, rows)
        other_data = data + distance.to(tl.int64) * (matrix.k_tiles * _TILE)
        other_codes = codes + distance.to(tl.int64) * (matrix.k_tiles * _HALF)
        base = tl.load(matrix.bases + feature // FEATURES).to(tl.int32)
        other_base = tl.load(matrix.bases + (feature + distance) // FEATURES).to(tl.int32)
        for tile in range(matrix.k_tiles):
            half = tl.arange(0, _HALF)
            lower, upper = half + tile * _TILE, half + (tile * _TILE + _HALF)
            lower_x = load_rows(met, lower, None, matrix.k, matrix.ragged)
            upper_x = load_rows(met, upper, None, matrix.k, matrix.ragged)
            code = tl.load(codes + (half + tile * _HALF)[None, :])
            total = tl.dot(decode_lower(tl.load(data + lower[None, :]), code, base), lower_x, total)
            total = tl.dot(decode_upper(tl.load(data + upper[None, :]), code, base), upper_x, total)
            code = tl.load(other_codes + (half + tile * _HALF)[None, :])
            low = tl.load(other_data + lower[None, :])
            other = tl.dot(decode_lower(low, code, other_base), lower_x, other)
            low = tl.load(other_data + upper[None, :])
            other = tl.dot(decode_upper(low, code, other_base), upper_x, other)
    return total, other
