"""Linear in parts: segments of a product's inputs, each summed by programs of its own."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import K_TILE
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes
from firelane.backends.cuda.kernels.matmul.operands import TileRows, matrix_operand, rows_operand
from firelane.backends.cuda.kernels.matmul.products import multiply, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import (
    escape_step,
    fitting,
    launch_of,
    run_arguments,
    tiling,
    transposed_for,
)
from firelane.backends.cuda.step.sum_order import SumOrder, sequential
from firelane.backends.cuda.weights.matrices import Matrix

_TILE = tl.constexpr(K_TILE)


@triton.jit(do_not_specialize=["feature_tiles", "row_tiles"])
def linear_parts_kernel(  # limits: exempt (kernel: matrix, rows, output, and how they are cut)
    matrix,
    x,
    parts,
    bounds,
    counts,
    rows,
    parts_stride,
    out_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CUT: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one part: parts[s] = segment s, parts[SEGMENTS] = escapes. Those are few and wait long for
    memory, so that programs of their own overlap them with the rest; they start last and fill gaps. bounds:
    as of linear_kernel(); there are no escapes then."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    part = tl.program_id(1)
    tiles = matrix.k_tiles // SEGMENTS
    first = row_tile * ROW_TILE
    count = tl.load(counts + COUNT) - first
    if count <= 0:
        return
    tokens = tl.arange(0, ROW_TILE)
    met = TileRows(
        x.data + first.to(tl.int64) * x.stride + tokens * x.stride,
        tokens < count,
        None if x.transposed is None else x.transposed + (first + tokens),
        x.transposed_stride,
    )
    features = feature_tile * FEATURES + tl.arange(0, FEATURES)
    parts += part.to(tl.int64) * parts_stride + first.to(tl.int64) * out_stride
    places = parts + tokens[None, :] * out_stride + features[:, None]
    mask = (features < rows)[:, None] & met.valid[None, :]
    if bounds is not None:
        run, end = tl.load(bounds + part), tl.load(bounds + part + 1)
        total = multiply(
            matrix, feature_tile * FEATURES, met, run // _TILE, (end + _TILE - 1) // _TILE,
            run if CUT else None, end if CUT else matrix.k, FEATURES, ROW_TILE, K_TILE,
        )  # fmt: skip
        tl.store(places, total, mask=mask)
    elif part < SEGMENTS:
        total = multiply(
            matrix, feature_tile * FEATURES, met, part * tiles, (part + 1) * tiles, None, matrix.k,
            FEATURES, ROW_TILE, K_TILE,
        )  # fmt: skip
        tl.store(places, total, mask=mask)
    else:
        block = feature_tile * (FEATURES // 64)
        total = sum_escapes(matrix.escapes, block, met, FEATURES, ROW_TILE, STEP)
        tl.store(places, total, mask=mask)


def linear_parts(
    matrix: Matrix,
    x: Tensor,
    parts: Tensor,
    *,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    x_t: Tensor | None = None,
    order: SumOrder | None = None,
) -> list[Work]:  # limits: exempt (an op's operands)
    """parts: float32 [segments + 1, >= max_rows, stride]: each segment's sums, then the escapes'; of a tree
    of sums there are none. x, counts, x_t, order: as linear()."""
    order = order or sequential(matrix.rows, matrix.k)
    works, transposed = transposed_for(matrix, x, x_t, config, counts, count, max_rows)
    config = fitting(config, matrix, matrix.padded_rows)
    tiles = tiling(matrix.padded_rows, max_rows, config)
    arguments = {
        "matrix": matrix_operand(matrix),
        **tiles,
        "x": rows_operand(x, transposed),
        "counts": counts,
        "COUNT": count,
        "rows": matrix.rows,
        **run_arguments(order),
        "STEP": escape_step(config.row_tile, transposed),
        "parts": parts,
        "parts_stride": parts.stride(0),
        "out_stride": parts.stride(1),
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"], order.count + (not order.is_tree))
    return [*works, launch_of(linear_parts_kernel, grid, arguments, config)]
