"""HeadLinear: a product with a matrix of its own for each head, all of a step's rows with each."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes
from firelane.backends.cuda.kernels.matmul.operands import TileRows, matrix_operand, rows_operand
from firelane.backends.cuda.kernels.matmul.products import multiply, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import launch_of, tiling
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.weights.matrices import Matrix

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)


@triton.jit(do_not_specialize=["feature_tiles", "row_tiles"])
def head_linear_kernel(  # limits: exempt (kernel: matrices, rows, output, and how they are cut)
    matrix,
    x,
    out,
    counts,
    rows,
    out_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    KEEP: tl.constexpr,
    KEEP_BLOCK: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of a head's columns of out. rows: of one head's matrix. The first tile of features takes
    the KEEP columns along."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    head = tl.program_id(1)
    first = row_tile * ROW_TILE
    count = tl.load(counts + COUNT) - first
    if count <= 0:
        return
    tokens = tl.arange(0, ROW_TILE)
    valid = tokens < count
    x_rows = x.data + first.to(tl.int64) * x.stride + head * (matrix.k + KEEP) + tokens * x.stride
    out_rows = out + first.to(tl.int64) * out_stride + head * (rows + KEEP) + tokens * out_stride
    feature = feature_tile * FEATURES
    place = head * (feature_tiles * FEATURES) + feature
    met = TileRows(x_rows, valid, None, 0)
    total = multiply(matrix, place, met, 0, matrix.k_tiles, None, matrix.k, FEATURES, ROW_TILE, K_TILE)
    total += sum_escapes(matrix.escapes, place // _ROW_BLOCK, met, FEATURES, ROW_TILE, STEP)
    features = feature + tl.arange(0, FEATURES)
    mask = (features < rows)[:, None] & valid[None, :]
    tl.store(out_rows[None, :] + features[:, None], total.to(out.dtype.element_ty), mask=mask)
    if KEEP:
        kept = tl.arange(0, KEEP_BLOCK)
        mask = (kept < KEEP)[:, None] & valid[None, :] & (feature_tile == 0)
        columns = tl.load(x_rows[None, :] + matrix.k + kept[:, None], mask=mask)
        tl.store(out_rows[None, :] + rows + kept[:, None], columns, mask=mask)


def head_linear(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    heads: int,
    keep: int,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
) -> Launch:  # limits: exempt (an op's operands)
    """matrix: of all heads, each padded; x, out: of the matrix's dtype, [max_rows, >= heads * (k + keep)] and
    [max_rows, >= heads * (rows + keep)]. config: fitting the matrix."""
    tiles = tiling(matrix.padded_rows // heads, max_rows, config)
    arguments = {
        "matrix": matrix_operand(matrix),
        **tiles,
        "x": rows_operand(x),
        "rows": matrix.rows // heads,
        "out": out,
        "out_stride": out.stride(0),
        "counts": counts,
        "COUNT": count,
        "KEEP": keep,
        "KEEP_BLOCK": power_of_two(max(1, keep)),
        "STEP": 32,
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"], heads)
    return launch_of(head_linear_kernel, grid, arguments, config)
