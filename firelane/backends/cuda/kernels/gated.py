"""GatedLinear: silu(x · gateᵀ + gate bias) * (x · upᵀ + up bias), both products in one program."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.config import LinearConfig
from firelane.backends.cuda.kernels.escapes import sum_escapes
from firelane.backends.cuda.kernels.products import multiply_two, place_tile
from firelane.backends.cuda.kernels.tiling import (
    fitting,
    launch_of,
    matrix_arguments,
    padded_k,
    tiling,
)
from firelane.backends.cuda.kernels.window import decode_if
from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.matrices import Matrix
from firelane.backends.cuda.shapes import ROW_BLOCK

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)


@triton.jit
def gated_linear_kernel(  # limits: exempt (kernel: matrix, rows and output in pointers and strides)
    data,
    codes,
    bases,
    starts,
    where,
    values,
    x,
    bias,
    out,
    counts,
    rows,
    k,
    length,
    stride,
    x_stride,
    out_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    RAGGED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of out. rows: features of out; up's rows stand behind all of gate's tiles. length: of all
    inputs, padded."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    count = tl.load(counts + COUNT)
    if row_tile * ROW_TILE >= count:
        return
    first_row = (row_tile * ROW_TILE).to(tl.int64)
    tokens = tl.arange(0, ROW_TILE)
    valid = tokens < count - row_tile * ROW_TILE
    x_rows = x + first_row * x_stride + tokens * x_stride
    first = feature_tile * FEATURES
    up_rows = feature_tiles * FEATURES
    gate, up = multiply_two(
        data, codes, bases, first, first + up_rows, stride, x_rows, valid, length, k,
        FEATURES, ROW_TILE, K_TILE, RAGGED,
    )  # fmt: skip
    block = feature_tile * (FEATURES // _ROW_BLOCK)
    up_block = block + up_rows // _ROW_BLOCK
    gate += sum_escapes(starts, where, values, block, x_rows, valid, FEATURES, ROW_TILE, STEP)
    up += sum_escapes(starts, where, values, up_block, x_rows, valid, FEATURES, ROW_TILE, STEP)
    features = first + tl.arange(0, FEATURES)
    inside = features < rows
    if bias is not None:
        gate += tl.load(bias + features, mask=inside, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + rows + features, mask=inside, other=0.0).to(tl.float32)[:, None]
    result = gate / (1.0 + tl.exp(-gate)) * up
    places = out + first_row * out_stride + tokens[None, :] * out_stride + features[:, None]
    tl.store(places, result.to(out.dtype.element_ty), mask=inside[:, None] & valid[None, :])


def gated_linear(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    scratch: Tensor | None = None,
) -> list[Launch]:  # limits: exempt (an op's operands)
    """matrix: gate's rows, padded, then up's; x: the matrix's dtype [max_rows, >= k]; out: bf16 or float32
    [max_rows, >= matrix.rows / 2]; bias: [matrix.rows], gate's, then up's. Rows from counts[count] on are left
    alone. scratch: bf16, for config.decode_first: padded rows * padded k elements."""
    launches, matrix = decode_if(config.decode_first, matrix, scratch)
    half = matrix.padded_rows // 2
    config = fitting(config, matrix, half)
    tiles = tiling(half, max_rows, config)
    arguments = {
        **matrix_arguments(matrix),
        **tiles,
        "x": x,
        "x_stride": x.stride(0),
        "bias": bias,
        "out": out,
        "out_stride": out.stride(0),
        "counts": counts,
        "COUNT": count,
        "rows": matrix.rows // 2,
        "length": padded_k(matrix),
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"],)
    return [*launches, launch_of(gated_linear_kernel, grid, arguments, config)]
