"""Linear: (x · weightᵀ + bias) * scale + residual, whole; in parts that are summed later: linear_parts.py."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.kernels.activations import capped
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes
from firelane.backends.cuda.kernels.matmul.library import LibraryProduct
from firelane.backends.cuda.kernels.matmul.linear_tree import add_to_tree
from firelane.backends.cuda.kernels.matmul.operands import (
    Levels,
    OutputOperand,
    TileRows,
    matrix_operand,
    output_operand,
    rows_operand,
)
from firelane.backends.cuda.kernels.matmul.products import again, finished, halves, multiply, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import (
    decode_first,
    escape_step,
    fitting,
    launch_of,
    run_arguments,
    tiling,
    transposed_for,
)
from firelane.backends.cuda.step.sum_order import SumOrder, sequential
from firelane.backends.cuda.weights.matrices import Matrix, PlainMatrix

_TILE = tl.constexpr(K_TILE)
_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
FINISH = LinearConfig(row_tile=64, warps=4, stages=2)  # of what follows a library's product
SLICE_SUMS = 32  # of one thread, that are written at once


@triton.jit(do_not_specialize=["feature_tiles", "row_tiles"])
def linear_kernel(  # limits: exempt (kernel: matrix, rows, output, and how they are cut)
    matrix,
    x,
    out,
    bounds,
    levels,
    counts,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    CUT: tl.constexpr,
    LEVELS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    SLICES: tl.constexpr,
    EARLY: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of out = (((segment 0 + …) + escapes) + bias) * scale + residual, capped.

    Registers hold one accumulator: the sums of all segments so far wait in `out`, where its residual must not
    lie. bounds: where segments begin, which are added as a tree then, and wait in `levels` (add_to_tree());
    CUT: some begin within a tile. SEGMENTS 0: all that matrix and rows give lies in `out` already. EARLY: the
    escapes' products are made first and wait in registers, where those have room: behind the main loop
    nothing else would be read meanwhile.
    """
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    first = row_tile * ROW_TILE
    count = tl.load(counts + COUNT) - first
    if count <= 0:
        return
    out = OutputOperand(
        out.data + first.to(tl.int64) * out.stride,
        out.stride,
        out.features,
        out.bias,
        None if out.residual is None else out.residual + first.to(tl.int64) * out.residual_stride,
        out.residual_stride,
        out.scale,
        out.cap,
    )
    tokens = tl.arange(0, ROW_TILE)
    met = TileRows(
        x.data + first.to(tl.int64) * x.stride + tokens * x.stride,
        tokens < count,
        None if x.transposed is None else x.transposed + (first + tokens),
        x.transposed_stride,
    )
    feature = feature_tile * FEATURES
    block = feature_tile * (FEATURES // _ROW_BLOCK)
    starts = matrix.escapes.starts
    has_escapes = tl.load(starts + block) < tl.load(starts + block + FEATURES // _ROW_BLOCK)
    escapes = None
    if EARLY:
        escapes = sum_escapes(matrix.escapes, block, met, FEATURES, ROW_TILE, STEP)
    tiles = matrix.k_tiles // max(SEGMENTS, 1)
    if levels is not None:
        waiting = Levels(
            levels.data + first.to(tl.int64) * levels.row_stride, levels.stride, levels.row_stride
        )
        for segment in range(SEGMENTS):
            run, end = tl.load(bounds + segment), tl.load(bounds + segment + 1)
            total = multiply(
                matrix, feature, met, run // _TILE, (end + _TILE - 1) // _TILE, run if CUT else None,
                end if CUT else matrix.k, FEATURES, ROW_TILE, K_TILE,
            )  # fmt: skip
            add_to_tree(
                out, waiting, total, segment, feature, count, FEATURES, ROW_TILE, SLICES, SEGMENTS, LEVELS
            )
    else:
        bare = OutputOperand(out.data, out.stride, out.features, None, None, 0, 1.0, 0.0)
        for segment in range(SEGMENTS):  # none if SEGMENTS is 0
            total = multiply(
                matrix, feature, met, segment * tiles, (segment + 1) * tiles, None, matrix.k,
                FEATURES, ROW_TILE, K_TILE,
            )  # fmt: skip
            if (segment == SEGMENTS - 1) & ((not has_escapes) | EARLY):
                add_to_tile(
                    out, total, segment > 0, escapes, has_escapes, feature, count, FEATURES, ROW_TILE, SLICES
                )
            else:
                add_to_tile(bare, total, segment > 0, None, False, feature, count, FEATURES, ROW_TILE, SLICES)
        if not EARLY:  # noqa: SIM102 (the inner one is known on the device alone)
            if has_escapes | (SEGMENTS == 0):
                total = sum_escapes(matrix.escapes, block, met, FEATURES, ROW_TILE, STEP)
                add_to_tile(out, total, True, None, False, feature, count, FEATURES, ROW_TILE, SLICES)


@triton.jit
def add_to_tile(
    out,
    total,
    has_earlier,
    escapes,
    has_escapes,
    feature,
    count,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    SLICES: tl.constexpr,
):
    """out = (((out + total) + escapes) + bias) * scale + residual, capped; what lies in `out` counts as 0 if
    not has_earlier. escapes: None in more than one slice; left out, not added as zeros, if not has_escapes.

    In SLICES runs of rows (1 or 4), one after the other: so few addresses are needed at a time that they fit
    beside the sums.
    """
    features = feature + tl.arange(0, FEATURES)
    tl.debug_barrier()
    if SLICES == 1:
        _add_rows(out, total, has_earlier, escapes, has_escapes, features, count, 0, ROW_TILE)
    else:
        quarter: tl.constexpr = ROW_TILE // 4
        lower, upper = halves(total, FEATURES, ROW_TILE)
        first, second = halves(lower, FEATURES, ROW_TILE // 2)
        third, fourth = halves(upper, FEATURES, ROW_TILE // 2)
        _add_rows(out, first, has_earlier, None, False, features, count, 0 * quarter, quarter)
        _add_rows(out, second, has_earlier, None, False, features, count, 1 * quarter, quarter)
        _add_rows(out, third, has_earlier, None, False, features, count, 2 * quarter, quarter)
        _add_rows(out, fourth, has_earlier, None, False, features, count, 3 * quarter, quarter)


@triton.jit
def _add_rows(out, total, has_earlier, escapes, has_escapes, features, count, first, WIDTH: tl.constexpr):
    """add_to_tile() of rows first .. first + WIDTH of the tile."""
    tokens = again(first) + tl.arange(0, WIDTH)
    mask = (features < out.features)[:, None] & (tokens < count)[None, :]
    places = out.data + tokens[None, :] * out.stride + features[:, None]
    total = tl.load(places, mask=mask & has_earlier, other=0.0) + total
    if escapes is not None:
        total = tl.where(has_escapes, total + escapes, total)
    total = finished(out, total, features, tokens, mask)
    tl.store(places, capped(total, out.cap), mask=mask)


def linear(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    residual: Tensor | None,
    scale: float = 1.0,
    softcap: float = 0.0,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    scratch: Tensor | None = None,
    x_t: Tensor | None = None,
    order: SumOrder | None = None,
    levels: Tensor | None = None,
) -> list[Work]:  # limits: exempt (an op's operands)
    """x: the matrix's dtype [max_rows, >= k]; out: float32 [max_rows, >= matrix.rows], overlaps nothing else;
    bias: [matrix.rows]; residual: float32, as out; scale, softcap: as the op's. Rows from counts[count] on
    are left alone (but by config.library, which makes garbage of them). scratch: bf16, for
    config.decode_first: padded rows * padded k elements. x_t: of x's dtype, for config.transpose:
    transpose.elements(k, max_rows). order: None is that of the matrix's shape; of a tree of several segments
    `levels` has room for those that wait, float32 [order.levels, >= max_rows, stride]."""
    order = order or sequential(matrix.rows, matrix.k)
    works, transposed = transposed_for(matrix, x, x_t, config, counts, count, max_rows)
    if config.decode_first and not isinstance(matrix, PlainMatrix):
        decode, matrix = decode_first(matrix, scratch)
        works.append(decode)
    run = run_arguments(order)
    if config.library and isinstance(matrix, PlainMatrix):
        works.append(LibraryProduct(x=x, weights=matrix.data[: matrix.rows, : matrix.k], out=out))
        run, config = run | {"SEGMENTS": 0}, FINISH
    config = fitting(config, matrix, matrix.padded_rows)
    tiles = tiling(matrix.padded_rows, max_rows, config)
    slices = 4 if config.features * config.row_tile > SLICE_SUMS * 32 * config.warps else 1
    waiting = None
    if levels is not None and order.is_tree:
        waiting = Levels(data=levels, stride=levels.stride(0), row_stride=levels.stride(1))
    arguments = {
        "matrix": matrix_operand(matrix),
        **tiles,
        "x": rows_operand(x, transposed),
        "out": output_operand(
            out, features=matrix.rows, bias=bias, residual=residual, scale=scale, cap=softcap
        ),
        "counts": counts,
        "COUNT": count,
        **run,
        "STEP": escape_step(config.row_tile, transposed),
        "SLICES": slices,
        "EARLY": slices == 1 and run["SEGMENTS"] > 0 and levels is None,
        "levels": waiting,
        "LEVELS": order.levels,
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"],)
    return [*works, launch_of(linear_kernel, grid, arguments, config)]
