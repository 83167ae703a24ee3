"""Products with the picked experts' matrices: a tile is some rows of one expert, found by RowGroups, and
features of its matrix. The grid is that of the worst case; programs behind the last tile leave."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.kernels.activations import gate_operand
from firelane.backends.cuda.kernels.matmul.escapes import sum_escapes
from firelane.backends.cuda.kernels.matmul.gated import SLICE_SUMS, finish_gated
from firelane.backends.cuda.kernels.matmul.operands import (
    OutputOperand,
    TileRows,
    matrix_operand,
    output_operand,
    rows_operand,
)
from firelane.backends.cuda.kernels.matmul.products import halves, multiply, multiply_two, place_tile
from firelane.backends.cuda.kernels.matmul.tiling import GROUP, launch_of
from firelane.backends.cuda.step.row_groups import TILE_COLUMNS, RowGroups, most_tiles
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.program.ops import Gate

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)


@triton.jit
def tile_of(tiles, row_tile, COLUMNS: tl.constexpr):
    """(expert, where its entries begin, how many)."""
    tiles += row_tile * COLUMNS
    return tl.load(tiles), tl.load(tiles + 1), tl.load(tiles + 2)


@triton.jit
def entries_of(order, first, count, PICKS: tl.constexpr, WIDTH: tl.constexpr):
    """(row, slot, valid) of WIDTH entries from number `first` of a tile on; row: int64."""
    numbers = first + tl.arange(0, WIDTH)
    valid = numbers < count
    entries = tl.load(order + numbers, mask=valid, other=0)
    return (entries // PICKS).to(tl.int64), entries % PICKS, valid


@triton.jit(do_not_specialize=["feature_tiles", "row_tiles"])
def expert_gated_kernel(  # limits: exempt (kernel: matrices, rows, output, and how they are cut)
    matrix,
    x,
    shares,
    order,
    tiles,
    num_tiles,
    out,
    kind,
    shares_stride,
    feature_tiles,
    row_tiles,
    COLUMNS: tl.constexpr,
    PICKS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    SLICES: tl.constexpr,
    GROUP: tl.constexpr,
):
    """gated_linear_kernel() of a tile. Slot j of a row begins at column j * out.features."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    if row_tile >= tl.load(num_tiles):
        return
    expert, first, count = tile_of(tiles, row_tile, COLUMNS)
    order += first
    up_rows = feature_tiles * FEATURES
    feature = feature_tile * FEATURES
    place = expert * (2 * up_rows) + feature
    row, _, valid = entries_of(order, 0, count, PICKS, ROW_TILE)
    met = TileRows(x.data + row * x.stride, valid, None, 0)
    gate, up = multiply_two(matrix, place, up_rows, met, FEATURES, ROW_TILE, K_TILE)
    block = place // _ROW_BLOCK
    up_block = block + up_rows // _ROW_BLOCK
    out = OutputOperand(
        out.data,
        out.stride,
        out.features,
        None if out.bias is None else out.bias + expert * (2 * out.features),
        None,
        0,
        1.0,
        0.0,
    )
    if SLICES == 1:
        _finish_entries(
            gate, up, matrix.escapes, x, block, up_block, shares, shares_stride, order, count, 0,
            out, feature, kind, PICKS, FEATURES, ROW_TILE, STEP,
        )  # fmt: skip
    else:
        half: tl.constexpr = ROW_TILE // 2
        gate, late_gate = halves(gate, FEATURES, ROW_TILE)
        up, late_up = halves(up, FEATURES, ROW_TILE)
        _finish_entries(
            gate, up, matrix.escapes, x, block, up_block, shares, shares_stride, order, count, 0,
            out, feature, kind, PICKS, FEATURES, half, STEP,
        )  # fmt: skip
        _finish_entries(
            late_gate, late_up, matrix.escapes, x, block, up_block, shares, shares_stride, order,
            count, half, out, feature, kind, PICKS, FEATURES, half, STEP,
        )  # fmt: skip


@triton.jit
def _finish_entries(  # limits: exempt (kernel: two tiles of sums, and what a tile of the output is made of)
    gate,
    up,
    escapes,
    x,
    block,
    up_block,
    shares,
    shares_stride,
    order,
    count,
    first,
    out,
    feature,
    kind,
    PICKS: tl.constexpr,
    FEATURES: tl.constexpr,
    WIDTH: tl.constexpr,
    STEP: tl.constexpr,
):
    """finish_gated() of WIDTH entries from number `first` of the tile on."""
    row, slot, valid = entries_of(order, first, count, PICKS, WIDTH)
    share = None
    if shares is not None:
        share = tl.load(shares + row * shares_stride + slot, mask=valid, other=0.0)
    finish_gated(
        gate, up, escapes, TileRows(x.data + row * x.stride, valid, None, 0), block, up_block, out, share,
        out.data + row * out.stride + slot * out.features, feature, kind,
        FEATURES, WIDTH, STEP, True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["feature_tiles", "row_tiles"])
def expert_linear_kernel(  # limits: exempt (kernel: matrices, rows, output, and how they are cut)
    matrix,
    x,
    shares,
    order,
    tiles,
    num_tiles,
    out,
    slot_stride,
    parts_stride,
    shares_stride,
    feature_tiles,
    row_tiles,
    SQUARED: tl.constexpr,
    COLUMNS: tl.constexpr,
    PICKS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Row of slot j, at j * parts_stride of out = share * (x's slot, at j * slot_stride · weightᵀ + bias).
    SQUARED: max of that and 0, squared."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    if row_tile >= tl.load(num_tiles):
        return
    expert, first, count = tile_of(tiles, row_tile, COLUMNS)
    row, slot, valid = entries_of(order + first, 0, count, PICKS, ROW_TILE)
    feature = feature_tile * FEATURES
    place = expert * (feature_tiles * FEATURES) + feature
    x_rows = x.data + row * x.stride + slot * slot_stride
    met = TileRows(x_rows, valid, None, 0)
    total = multiply(matrix, place, met, 0, matrix.k_tiles, None, matrix.k, FEATURES, ROW_TILE, K_TILE)
    total += sum_escapes(matrix.escapes, place // _ROW_BLOCK, met, FEATURES, ROW_TILE, STEP)
    features = feature + tl.arange(0, FEATURES)
    inside = features < out.features
    if out.bias is not None:
        total += tl.load(out.bias + expert * out.features + features, mask=inside, other=0.0)[:, None]
    if shares is not None:
        total *= tl.load(shares + row * shares_stride + slot, mask=valid, other=0.0)[None, :]
    if SQUARED:
        total = tl.maximum(total, 0.0)
        total *= total
    out_rows = out.data + slot.to(tl.int64) * parts_stride + row * out.stride
    tl.store(out_rows[None, :] + features[:, None], total, mask=inside[:, None] & valid[None, :])


def expert_gated(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    groups: RowGroups,
    experts: int,
    picks: int,
    bias: Tensor | None,
    shares: Tensor | None,
    gate: Gate,
    config: LinearConfig,
    max_rows: int,
) -> Launch:  # limits: exempt (an op's operands)
    """matrix: of all experts, of each gate's rows, padded, then up's; x: the matrix's dtype [max_rows, >= k];
    out: [max_rows, >= picks * features of a slot]; bias: float32 [experts * rows]; shares: float32
    [max_rows, stride]. groups: in tiles of config.row_tile. config: fitting the matrix."""
    sums = 2 * config.features * config.row_tile // (32 * config.warps)
    features = matrix.rows // (2 * experts)
    arguments = _arguments(matrix, x, groups, experts, picks, shares, config, halves=2)
    return _launch(
        expert_gated_kernel,
        arguments
        | {
            "kind": gate_operand(gate),
            "out": output_operand(out, features=features, bias=bias),
            "SLICES": 2 if sums > SLICE_SUMS else 1,
        },
        config,
        most_tiles(rows=max_rows, picks=picks, experts=experts, row_tile=config.row_tile),
    )


def expert_linear(
    matrix: Matrix,
    x: Tensor,
    parts: Tensor,
    *,
    groups: RowGroups,
    experts: int,
    picks: int,
    bias: Tensor | None,
    shares: Tensor | None,
    config: LinearConfig,
    max_rows: int,
) -> Launch:  # limits: exempt (an op's operands)
    """parts: float32 [picks, >= max_rows, stride]; x: [max_rows, >= picks * k]. The rest as expert_gated()'s
    operands."""
    arguments = _arguments(matrix, x, groups, experts, picks, shares, config, halves=1)
    out = output_operand(parts[0], features=matrix.rows // experts, bias=bias)._replace(data=parts)
    return _launch(
        expert_linear_kernel,
        arguments
        | {
            "out": out,
            "slot_stride": matrix.k,
            "parts_stride": parts.stride(0),
            "SQUARED": False,
        },
        config,
        most_tiles(rows=max_rows, picks=picks, experts=experts, row_tile=config.row_tile),
    )


def expert_squared(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    groups: RowGroups,
    experts: int,
    picks: int,
    bias: Tensor | None,
    shares: Tensor | None,
    config: LinearConfig,
    max_rows: int,
) -> Launch:  # limits: exempt (an op's operands)
    """out: [max_rows, >= picks * features of a slot]; x: [max_rows, >= k]. The rest as expert_gated()'s
    operands, of experts without a gate: max(product, 0)² of each."""
    features = matrix.rows // experts
    arguments = _arguments(matrix, x, groups, experts, picks, shares, config, halves=1)
    return _launch(
        expert_linear_kernel,
        arguments
        | {
            "out": output_operand(out, features=features, bias=bias),
            "slot_stride": 0,
            "parts_stride": features,
            "SQUARED": True,
        },
        config,
        most_tiles(rows=max_rows, picks=picks, experts=experts, row_tile=config.row_tile),
    )


def _arguments(
    matrix: Matrix,
    x: Tensor,
    groups: RowGroups,
    experts: int,
    picks: int,
    shares: Tensor | None,
    config: LinearConfig,
    *,
    halves: int,
) -> dict[str, Any]:  # limits: exempt (an op's operands)
    return {
        "matrix": matrix_operand(matrix),
        "x": rows_operand(x),
        "shares": shares,
        "shares_stride": 0 if shares is None else shares.stride(0),
        "order": groups.order,
        "tiles": groups.tiles,
        "num_tiles": groups.count,
        "feature_tiles": matrix.padded_rows // (experts * halves * config.features),
        "COLUMNS": TILE_COLUMNS,
        "PICKS": picks,
        "FEATURES": config.features,
        "ROW_TILE": config.row_tile,
        "K_TILE": config.k_tile,
        "STEP": 32,
        "GROUP": GROUP,
    }


def _launch(kernel: Any, arguments: dict[str, Any], config: LinearConfig, row_tiles: int) -> Launch:
    grid = (arguments["feature_tiles"] * row_tiles,)
    return launch_of(kernel, grid, arguments | {"row_tiles": row_tiles}, config)
