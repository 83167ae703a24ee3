"""GatedLinear: gate(x · gateᵀ + gate bias, x · upᵀ + up bias), both products in one program."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch, Work
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels.activations import gate_arguments, gated
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes_of_two
from firelane.backends.cuda.kernels.matmul.library import LibraryProduct
from firelane.backends.cuda.kernels.matmul.products import halves, multiply_two, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import (
    decode_first,
    escape_step,
    fitting,
    launch_of,
    matrix_arguments,
    row_arguments,
    tiling,
    transposed_for,
)
from firelane.backends.cuda.weights.matrices import Matrix, PlainMatrix
from firelane.program.ops import SILU, Gate

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
FINISH = LinearConfig(row_tile=64, warps=4, stages=2)  # of what follows a library's product
SLICE_SUMS = 64  # of one thread, gate's and up's, that are finished at once


@triton.jit(do_not_specialize=["skipped", "most", "feature_tiles", "row_tiles"])
def gated_linear_kernel(  # limits: exempt (kernel: matrix, rows and output in pointers and strides)
    data,
    codes,
    bases,
    scales,
    minima,
    units,
    starts,
    where,
    values,
    x,
    x_t,
    bias,
    out,
    sums,
    counts,
    skipped,
    most,
    rows,
    k,
    k_tiles,
    x_stride,
    x_t_stride,
    out_stride,
    sums_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    RAGGED: tl.constexpr,
    NUMBERS: tl.constexpr,
    GROUP_SIZE: tl.constexpr,
    SLICES: tl.constexpr,
    EARLY: tl.constexpr,
    GROUP: tl.constexpr,
    GELU: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    UP_OFFSET: tl.constexpr,
):
    """One tile of out. rows: features of out; up's rows stand behind all of gate's tiles. sums: where both
    products lie if they are made already, each row as a row of the matrix's rows. skipped: rows of the step
    before those of x and out, which have room for `most`. EARLY: the escapes' products are made first and
    wait in registers, where those have room: behind the main loop nothing else would be read meanwhile."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    feature = feature_tile * FEATURES
    up_rows = feature_tiles * FEATURES
    count = min(tl.load(counts + COUNT) - skipped, most)
    if row_tile * ROW_TILE >= count:
        return
    first_row = row_tile * ROW_TILE
    x += first_row.to(tl.int64) * x_stride
    if x_t is not None:
        x_t += first_row
    out += first_row.to(tl.int64) * out_stride
    count -= first_row
    tokens = tl.arange(0, ROW_TILE)
    x_rows = x + tokens * x_stride
    if EARLY:
        x_t_rows = None if x_t is None else x_t + tokens
        block = feature // _ROW_BLOCK
        gate_escapes, up_escapes = sum_escapes_of_two(
            starts, where, values, block, block + up_rows // _ROW_BLOCK, x_rows, tokens < count,
            x_t_rows, x_t_stride, FEATURES, ROW_TILE, STEP,
        )  # fmt: skip
    if sums is None:
        gate, up = multiply_two(
            data, codes, bases, scales, minima, units, feature, up_rows, k_tiles, x_rows, tokens < count, k,
            FEATURES, ROW_TILE, K_TILE, RAGGED, NUMBERS, GROUP_SIZE,
        )  # fmt: skip
    else:
        sums += first_row.to(tl.int64) * sums_stride + feature
        places = sums + tokens[None, :] * sums_stride + tl.arange(0, FEATURES)[:, None]
        gate = tl.load(places, mask=(tokens < count)[None, :], other=0.0)
        up = tl.load(places + up_rows, mask=(tokens < count)[None, :], other=0.0)
    if EARLY:
        gate += gate_escapes
        up += up_escapes
    if SLICES == 1:
        _finish_rows(
            gate, up, starts, where, values, x, x_stride, x_t, x_t_stride, bias, out,
            out_stride, feature, rows, up_rows, count, 0, FEATURES, ROW_TILE, STEP, not EARLY,
            GELU, ALPHA, LIMIT, UP_OFFSET,
        )  # fmt: skip
    else:
        half: tl.constexpr = ROW_TILE // 2
        gate, late_gate = halves(gate, FEATURES, ROW_TILE)
        up, late_up = halves(up, FEATURES, ROW_TILE)
        _finish_rows(
            gate, up, starts, where, values, x, x_stride, x_t, x_t_stride, bias, out,
            out_stride, feature, rows, up_rows, count, 0, FEATURES, half, STEP, True,
            GELU, ALPHA, LIMIT, UP_OFFSET,
        )  # fmt: skip
        _finish_rows(
            late_gate, late_up, starts, where, values, x, x_stride, x_t, x_t_stride, bias,
            out, out_stride, feature, rows, up_rows, count, half, FEATURES, half, STEP, True,
            GELU, ALPHA, LIMIT, UP_OFFSET,
        )  # fmt: skip


@triton.jit
def _finish_rows(  # limits: exempt (kernel: two tiles of sums, and what a tile of the output is made of)
    gate,
    up,
    starts,
    where,
    values,
    x,
    x_stride,
    x_t,
    x_t_stride,
    bias,
    out,
    out_stride,
    feature,
    rows,
    up_rows,
    count,
    first,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    ESCAPES: tl.constexpr,
    GELU: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    UP_OFFSET: tl.constexpr,
):
    """finish_gated() of rows first .. first + WIDTH of the tile: in two halves if the tile is big, as the
    registers hold few more sums beside gate and up."""
    tokens = tl.arange(0, WIDTH) + first
    block = feature // _ROW_BLOCK
    finish_gated(
        gate, up, starts, where, values, x + tokens * x_stride, tokens < count,
        None if x_t is None else x_t + tokens, x_t_stride, block, block + up_rows // _ROW_BLOCK,
        bias, None, out + tokens * out_stride, feature, rows,
        FEATURES, WIDTH, STEP, ESCAPES, GELU, ALPHA, LIMIT, UP_OFFSET,
    )  # fmt: skip


@triton.jit
def finish_gated(  # limits: exempt (kernel: two tiles of sums, and what a tile of the output is made of)
    gate,
    up,
    starts,
    where,
    values,
    x_rows,
    valid,
    x_t_rows,
    x_t_stride,
    block,
    up_block,
    bias,
    share,
    out_rows,
    feature,
    rows,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    ESCAPES: tl.constexpr,
    GELU: tl.constexpr,
    ALPHA: tl.constexpr,
    LIMIT: tl.constexpr,
    UP_OFFSET: tl.constexpr,
):
    """Finish sums of WIDTH rows with features feature .., `rows` in all: escapes (if they are still missing),
    bias, the row's share (if any), and the gate, into out_rows."""
    if ESCAPES:
        gate_escapes, up_escapes = sum_escapes_of_two(
            starts, where, values, block, up_block, x_rows, valid, x_t_rows, x_t_stride,
            FEATURES, WIDTH, STEP,
        )  # fmt: skip
        gate += gate_escapes
        up += up_escapes
    features = feature + tl.arange(0, FEATURES)
    inside = features < rows
    if bias is not None:
        gate += tl.load(bias + features, mask=inside, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias + rows + features, mask=inside, other=0.0).to(tl.float32)[:, None]
    if share is not None:
        gate *= share[None, :]
        up *= share[None, :]
    result = gated(gate, up, GELU, ALPHA, LIMIT, UP_OFFSET)
    places = out_rows[None, :] + features[:, None]
    tl.store(places, result.to(out_rows.dtype.element_ty), mask=inside[:, None] & valid[None, :])


def gated_linear(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    gate: Gate = SILU,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    scratch: Tensor | None = None,
    sums: Tensor | None = None,
    x_t: Tensor | None = None,
) -> list[Work]:  # limits: exempt (an op's operands)
    """matrix: gate's rows, padded, then up's; x: the matrix's dtype [max_rows, >= k]; out: bf16 or float32
    [max_rows, >= matrix.rows / 2]; bias: [matrix.rows], gate's, then up's. Rows from counts[count] on are
    left alone. scratch: bf16, for config.decode_first: padded rows * padded k elements. sums: float32, for
    config.library: [any number of rows, padded rows of the matrix]; so many rows are multiplied at a time.
    x_t: of x's dtype, for config.transpose: transpose.elements(k, max_rows)."""
    works, transposed = transposed_for(matrix, x, x_t, config, counts, count, max_rows)
    if config.decode_first and not isinstance(matrix, PlainMatrix):
        decode, matrix = decode_first(matrix, scratch)
        works.append(decode)
    finish = partial(_finish, matrix, bias=bias, gate=gate, counts=counts, count=count)
    if not config.library or not isinstance(matrix, PlainMatrix):
        return [*works, finish(x, out, transposed, max_rows=max_rows, config=config, sums=None, skipped=0)]
    assert sums is not None, "a library's gated product needs room for its sums"
    assert len(sums) % FINISH.row_tile == 0, "in whole tiles of rows"
    for first in range(0, max_rows, len(sums)):
        some = slice(first, min(first + len(sums), max_rows))
        room = sums[: some.stop - first]
        works.append(LibraryProduct(x=x[some], weights=matrix.data[:, : matrix.k], out=room))
        meets = None if transposed is None else transposed[:, first:]
        works.append(
            finish(x[some], out[some], meets, max_rows=len(room), config=FINISH, sums=room, skipped=first)
        )
    return works


def _finish(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    transposed: Tensor | None,
    *,
    bias: Tensor | None,
    gate: Gate,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    sums: Tensor | None,
    skipped: int,
) -> Launch:  # limits: exempt (an op's operands)
    """The kernel, which makes the products itself where sums is None."""
    half = matrix.padded_rows // 2
    config = fitting(config, matrix, half)
    tiles = tiling(half, max_rows, config)
    sums_of_one = 2 * config.features * config.row_tile // (32 * config.warps)
    slices = 2 if sums_of_one > SLICE_SUMS else 1
    arguments = {
        **matrix_arguments(matrix),
        **tiles,
        **row_arguments(x, transposed),
        **gate_arguments(gate),
        "bias": bias,
        "out": out,
        "out_stride": out.stride(0),
        "sums": sums,
        "sums_stride": 0 if sums is None else sums.stride(0),
        "skipped": skipped,
        "most": max_rows,
        "counts": counts,
        "COUNT": count,
        "rows": matrix.rows // 2,
        "SLICES": slices,
        "EARLY": 2 * sums_of_one <= SLICE_SUMS,
        "STEP": escape_step(config.row_tile, transposed) if slices == 1 else 32,
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"],)
    return launch_of(gated_linear_kernel, grid, arguments, config)
