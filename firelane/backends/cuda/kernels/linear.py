"""Linear: x · weightᵀ + bias + residual, whole, or in parts that its reader adds up (pending.py)."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.config import LinearConfig
from firelane.backends.cuda.kernels.escapes import sum_escapes
from firelane.backends.cuda.kernels.products import multiply, place_tile
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
from firelane.backends.cuda.shapes import segments

# Sums of one thread. Above, a second accumulator would not fit the registers: sums wait in the output.
REGISTER_SUMS = 64


@triton.jit
def linear_kernel(  # limits: exempt (kernel: matrix, rows and output in pointers and strides)
    data,
    codes,
    bases,
    starts,
    where,
    values,
    x,
    bias,
    residual,
    out,
    counts,
    rows,
    k,
    length,
    stride,
    x_stride,
    residual_stride,
    out_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    RAGGED: tl.constexpr,
    IN_MEMORY: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of out = ((segment 0 + …) + escapes) + bias + residual. length: of a segment. IN_MEMORY: sums
    wait in `out` while others are made; `residual` must not lie there."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    count = tl.load(counts + COUNT)
    if row_tile * ROW_TILE >= count:
        return
    tokens = row_tile * ROW_TILE + tl.arange(0, ROW_TILE)
    valid = tokens < count
    x_rows = x + tokens.to(tl.int64) * x_stride
    features = feature_tile * FEATURES + tl.arange(0, FEATURES)
    places = out + tokens.to(tl.int64)[None, :] * out_stride + features[:, None]
    mask = (features < rows)[:, None] & valid[None, :]
    total = multiply(
        data, codes, bases, feature_tile * FEATURES, stride, x_rows, valid, 0, length, k,
        FEATURES, ROW_TILE, K_TILE, RAGGED,
    )  # fmt: skip
    for segment in range(1, SEGMENTS):
        if IN_MEMORY:
            tl.store(places, total, mask=mask)
        part = multiply(
            data, codes, bases, feature_tile * FEATURES, stride, x_rows, valid, segment * length, length, k,
            FEATURES, ROW_TILE, K_TILE, RAGGED,
        )  # fmt: skip
        if IN_MEMORY:
            tl.debug_barrier()
            total = tl.load(places, mask=mask, other=0.0)
        total += part
    block = feature_tile * (FEATURES // 64)
    if IN_MEMORY:
        if tl.load(starts + block) < tl.load(starts + block + FEATURES // 64):
            tl.store(places, total, mask=mask)
            part = sum_escapes(starts, where, values, block, x_rows, valid, FEATURES, ROW_TILE, STEP)
            tl.debug_barrier()
            total = tl.load(places, mask=mask, other=0.0) + part
        else:
            total += 0.0
    else:
        total += sum_escapes(starts, where, values, block, x_rows, valid, FEATURES, ROW_TILE, STEP)
    if bias is not None:
        total += tl.load(bias + features, mask=features < rows, other=0.0).to(tl.float32)[:, None]
    if residual is not None:
        at = residual + tokens.to(tl.int64)[None, :] * residual_stride + features[:, None]
        total += tl.load(at, mask=mask, other=0.0)
    tl.store(places, total, mask=mask)


@triton.jit
def linear_parts_kernel(  # limits: exempt (kernel: matrix, rows and output in pointers and strides)
    data,
    codes,
    bases,
    starts,
    where,
    values,
    x,
    parts,
    counts,
    rows,
    k,
    length,
    stride,
    x_stride,
    parts_stride,
    out_stride,
    feature_tiles,
    row_tiles,
    COUNT: tl.constexpr,
    SEGMENTS: tl.constexpr,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    K_TILE: tl.constexpr,
    STEP: tl.constexpr,
    RAGGED: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One tile of one part: parts[s] = segment s, parts[SEGMENTS] = escapes. Those are few and wait long for
    memory, so that programs of their own overlap them with the rest; they start last and fill gaps."""
    feature_tile, row_tile = place_tile(tl.program_id(0), feature_tiles, row_tiles, GROUP)
    part = tl.program_id(1)
    count = tl.load(counts + COUNT)
    if row_tile * ROW_TILE >= count:
        return
    tokens = row_tile * ROW_TILE + tl.arange(0, ROW_TILE)
    valid = tokens < count
    x_rows = x + tokens.to(tl.int64) * x_stride
    features = feature_tile * FEATURES + tl.arange(0, FEATURES)
    places = parts + part.to(tl.int64) * parts_stride
    places += tokens.to(tl.int64)[None, :] * out_stride + features[:, None]
    mask = (features < rows)[:, None] & valid[None, :]
    if part < SEGMENTS:
        total = multiply(
            data, codes, bases, feature_tile * FEATURES, stride, x_rows, valid, part * length, length, k,
            FEATURES, ROW_TILE, K_TILE, RAGGED,
        )  # fmt: skip
        tl.store(places, total, mask=mask)
    else:
        block = feature_tile * (FEATURES // 64)
        total = sum_escapes(starts, where, values, block, x_rows, valid, FEATURES, ROW_TILE, STEP)
        tl.store(places, total, mask=mask)


def linear(
    matrix: Matrix,
    x: Tensor,
    out: Tensor,
    *,
    bias: Tensor | None,
    residual: Tensor | None,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
    scratch: Tensor | None = None,
) -> list[Launch]:  # limits: exempt (an op's operands)
    """x: the matrix's dtype [max_rows, >= k]; out: float32 [max_rows, >= matrix.rows], overlaps nothing else;
    bias: [matrix.rows]; residual: float32, as out. Rows from counts[count] on are left alone. scratch: bf16,
    for config.decode_first: padded rows * padded k elements."""
    launches, matrix = decode_if(config.decode_first, matrix, scratch)
    config = fitting(config, matrix, matrix.padded_rows)
    tiles = tiling(matrix.padded_rows, max_rows, config)
    num_segments = segments(matrix.rows, matrix.k)
    arguments = {
        **matrix_arguments(matrix),
        **tiles,
        "x": x,
        "x_stride": x.stride(0),
        "counts": counts,
        "COUNT": count,
        "rows": matrix.rows,
        "length": padded_k(matrix) // num_segments,
        "SEGMENTS": num_segments,
        "bias": bias,
        "residual": residual,
        "out": out,
        "residual_stride": 0 if residual is None else residual.stride(0),
        "out_stride": out.stride(0),
        "IN_MEMORY": config.features * config.row_tile > REGISTER_SUMS * 32 * config.warps,
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"],)
    return [*launches, launch_of(linear_kernel, grid, arguments, config)]


def linear_parts(
    matrix: Matrix,
    x: Tensor,
    parts: Tensor,
    *,
    counts: Tensor,
    count: int,
    max_rows: int,
    config: LinearConfig,
) -> list[Launch]:
    """parts: float32 [segments + 1, >= max_rows, stride]: each segment's sums, then the escapes'. x, counts:
    as linear()."""
    config = fitting(config, matrix, matrix.padded_rows)
    tiles = tiling(matrix.padded_rows, max_rows, config)
    num_segments = segments(matrix.rows, matrix.k)
    arguments = {
        **matrix_arguments(matrix),
        **tiles,
        "x": x,
        "x_stride": x.stride(0),
        "counts": counts,
        "COUNT": count,
        "rows": matrix.rows,
        "length": padded_k(matrix) // num_segments,
        "SEGMENTS": num_segments,
        "parts": parts,
        "parts_stride": parts.stride(0),
        "out_stride": parts.stride(1),
    }
    grid = (tiles["feature_tiles"] * tiles["row_tiles"], num_segments + 1)
    return [launch_of(linear_parts_kernel, grid, arguments, config)]
