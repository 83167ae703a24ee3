"""Rows for which there is an output: picked from the rows of tokens, and given to the host as they are."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.kernels.sums import columns_of, read, source_arguments
from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.split_k import Source
from firelane.backends.cuda.tables import PARITY, ROW_KIND, ROW_TOKEN, ROWS, StepTables
from firelane.contract import EMBED


@triton.jit
def select_rows_kernel(  # limits: exempt (kernel: a Source in pointers and strides)
    parts,
    part_stride,
    row_stride,
    bias,
    residual,
    residual_stride,
    out,
    out_stride,
    counts,
    rows,
    rows_stride,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    COUNT: tl.constexpr,
    TOKEN: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    token = tl.load(rows + row * rows_stride + TOKEN)
    if row >= tl.load(counts + COUNT):
        return
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    x = read(
        parts,
        part_stride,
        row_stride,
        bias,
        residual,
        residual_stride,
        token.to(tl.int64),
        columns,
        mask,
        PARTS=PARTS,
        SCALE=SCALE,
    )
    tl.store(out + row.to(tl.int64) * out_stride + columns, x.to(out.dtype.element_ty), mask=mask)


@triton.jit
def store_hidden_kernel(  # limits: exempt (kernel: pointers and strides)
    x,
    x_stride,
    hidden,
    hidden_stride,
    hidden_rows,
    counts,
    rows,
    rows_stride,
    COUNT: tl.constexpr,
    PARITY: tl.constexpr,
    KIND: tl.constexpr,
    WANTED: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    kind = tl.load(rows + row * rows_stride + KIND)
    if row >= tl.load(counts + COUNT):
        return
    if kind != WANTED:
        return
    row = row.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    y = tl.load(x + row * x_stride + columns, mask=mask, other=0.0)
    hidden += tl.load(counts + PARITY).to(tl.int64) * hidden_rows * hidden_stride
    tl.store(hidden + row * hidden_stride + columns, y.to(tl.float32), mask=mask)


def select_rows(x: Source, tables: StepTables, out: Tensor, *, width: int, max_rows: int) -> Launch:
    """out[r] = x[token row of output row r]. Of a split-K x only these rows are added up, so nobody else may
    wait for its sum."""
    assert isinstance(x, Tensor) or x.out is None, "select_rows: the other rows of x are read, too"
    block = columns_of(width)
    return Launch(
        kernel=select_rows_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            **source_arguments(x),
            "out": out,
            "out_stride": out.stride(0),
            "counts": tables.counts,
            "rows": tables.rows,
            "rows_stride": tables.rows.stride(0),
            "COUNT": ROWS,
            "TOKEN": ROW_TOKEN,
            "WIDTH": width,
            "BLOCK": block,
        },
    )


def store_hidden(x: Tensor, tables: StepTables, hidden: Tensor, *, width: int, max_rows: int) -> Launch:
    """hidden[r] = x[r] for output rows of kind EMBED. hidden: pinned float32 [sets, rows, width];
    the set of the step's parity is written."""
    block = columns_of(width)
    return Launch(
        kernel=store_hidden_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            "x": x,
            "x_stride": x.stride(0),
            "hidden": hidden,
            "hidden_stride": hidden.stride(1),
            "hidden_rows": hidden.shape[1],
            "counts": tables.counts,
            "rows": tables.rows,
            "rows_stride": tables.rows.stride(0),
            "COUNT": ROWS,
            "PARITY": PARITY,
            "KIND": ROW_KIND,
            "WANTED": EMBED,
            "WIDTH": width,
            "BLOCK": block,
        },
    )
