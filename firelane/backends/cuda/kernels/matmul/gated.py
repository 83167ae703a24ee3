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
from firelane.backends.cuda.kernels.activations import gate_operand, gated
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes_of_two
from firelane.backends.cuda.kernels.matmul.library import LibraryProduct
from firelane.backends.cuda.kernels.matmul.operands import (
    OutputOperand,
    RowsOperand,
    TileRows,
    matrix_operand,
    output_operand,
    rows_operand,
)
from firelane.backends.cuda.kernels.matmul.products import halves, multiply_two, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import (
    decode_first,
    escape_step,
    fitting,
    launch_of,
    tiling,
    transposed_for,
)
from firelane.backends.cuda.weights.matrices import Matrix, PlainMatrix
from firelane.program.ops import SILU, Gate

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
FINISH = LinearConfig(row_tile=64, warps=4, stages=2)  # of what follows a library's product
SLICE_SUMS = 64  # of one thread, gate's and up's, that are finished at once


@triton.jit(do_not_specialize=["skipped", "most", "feature_tiles", "row_tiles"])
def gated_linear_kernel(  # limits: exempt (kernel: matrix, rows, output, and how they are cut)
    matrix,
    x,
    out,
    sums,
    counts,
    kind,
    skipped,
    most,
    sums_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    SLICES: tl.constexpr,
    EARLY: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of out; up's rows stand behind all of gate's tiles. kind: GateOperand. sums: where both
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
    x = RowsOperand(
        x.data + first_row.to(tl.int64) * x.stride,
        x.stride,
        None if x.transposed is None else x.transposed + first_row,
        x.transposed_stride,
    )
    out = OutputOperand(
        out.data + first_row.to(tl.int64) * out.stride, out.stride, out.features, out.bias, None, 0, 1.0, 0.0
    )
    count -= first_row
    tokens = tl.arange(0, ROW_TILE)
    met = TileRows(
        x.data + tokens * x.stride,
        tokens < count,
        None if x.transposed is None else x.transposed + tokens,
        x.transposed_stride,
    )
    if EARLY:
        block = feature // _ROW_BLOCK
        gate_escapes, up_escapes = sum_escapes_of_two(
            matrix.escapes, block, block + up_rows // _ROW_BLOCK, met, FEATURES, ROW_TILE, STEP
        )
    if sums is None:
        gate, up = multiply_two(matrix, feature, up_rows, met, FEATURES, ROW_TILE, K_TILE)
    else:
        sums += first_row.to(tl.int64) * sums_stride + feature
        places = sums + tokens[None, :] * sums_stride + tl.arange(0, FEATURES)[:, None]
        gate = tl.load(places, mask=met.valid[None, :], other=0.0)
        up = tl.load(places + up_rows, mask=met.valid[None, :], other=0.0)
    if EARLY:
        gate += gate_escapes
        up += up_escapes
    if SLICES == 1:
        _finish_rows(
            gate, up, matrix.escapes, x, out, kind, feature, up_rows, count, 0,
            FEATURES, ROW_TILE, STEP, not EARLY,
        )  # fmt: skip
    else:
        half: tl.constexpr = ROW_TILE // 2
        gate, late_gate = halves(gate, FEATURES, ROW_TILE)
        up, late_up = halves(up, FEATURES, ROW_TILE)
        _finish_rows(
            gate, up, matrix.escapes, x, out, kind, feature, up_rows, count, 0, FEATURES, half, STEP, True
        )
        _finish_rows(
            late_gate, late_up, matrix.escapes, x, out, kind, feature, up_rows, count, half,
            FEATURES, half, STEP, True,
        )  # fmt: skip


@triton.jit
def _finish_rows(  # limits: exempt (kernel: two tiles of sums, and what a tile of the output is made of)
    gate,
    up,
    escapes,
    x,
    out,
    kind,
    feature,
    up_rows,
    count,
    first,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    ESCAPES: tl.constexpr,
):
    """finish_gated() of rows first .. first + WIDTH of the tile: in two halves if the tile is big, as the
    registers hold few more sums beside gate and up."""
    tokens = tl.arange(0, WIDTH) + first
    met = TileRows(
        x.data + tokens * x.stride,
        tokens < count,
        None if x.transposed is None else x.transposed + tokens,
        x.transposed_stride,
    )
    block = feature // _ROW_BLOCK
    finish_gated(
        gate, up, escapes, met, block, block + up_rows // _ROW_BLOCK, out, None,
        out.data + tokens * out.stride, feature, kind, FEATURES, WIDTH, STEP, ESCAPES,
    )  # fmt: skip


@triton.jit
def finish_gated(  # limits: exempt (kernel: two tiles of sums, and what a tile of the output is made of)
    gate,
    up,
    escapes,
    met,
    block,
    up_block,
    out,
    share,
    out_rows,
    feature,
    kind,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
    ESCAPES: tl.constexpr,
):
    """Finish sums of WIDTH rows with features feature .. of `out`: escapes (if they are still missing), bias,
    the row's share (if any), and the gate, into out_rows."""
    if ESCAPES:
        gate_escapes, up_escapes = sum_escapes_of_two(escapes, block, up_block, met, FEATURES, WIDTH, STEP)
        gate += gate_escapes
        up += up_escapes
    features = feature + tl.arange(0, FEATURES)
    inside = features < out.features
    if out.bias is not None:
        up_bias = out.bias + out.features
        gate += tl.load(out.bias + features, mask=inside, other=0.0).to(tl.float32)[:, None]
        up += tl.load(up_bias + features, mask=inside, other=0.0).to(tl.float32)[:, None]
    if share is not None:
        gate *= share[None, :]
        up *= share[None, :]
    result = gated(gate, up, kind)
    places = out_rows[None, :] + features[:, None]
    tl.store(places, result.to(out_rows.dtype.element_ty), mask=inside[:, None] & met.valid[None, :])


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
        "matrix": matrix_operand(matrix),
        **tiles,
        "x": rows_operand(x, transposed),
        "kind": gate_operand(gate),
        "out": output_operand(out, features=matrix.rows // 2, bias=bias),
        "sums": sums,
        "sums_stride": 0 if sums is None else sums.stride(0),
        "skipped": skipped,
        "most": max_rows,
        "counts": counts,
        "COUNT": count,
        "SLICES": slices,
        "EARLY": 2 * sums_of_one <= SLICE_SUMS,
        "STEP": escape_step(config.row_tile, transposed) if slices == 1 else 32,
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"],)
    return launch_of(gated_linear_kernel, grid, arguments, config)
