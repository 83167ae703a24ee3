"""Rows of a value rounded to another dtype: all of them (Cast), or those for which there is an output
(SelectRows). A split-K value is added up on the way."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import columns_of, read, source_operand, write_total
from firelane.backends.cuda.step.split_k import Source
from firelane.backends.cuda.step.tables import ROW_TOKEN, ROWS, StepTables


@triton.jit
def cast_kernel(
    x,
    tokens,
    tokens_stride,
    out,
    out_stride,
    counts,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row of out and BLOCK columns. tokens: the row of x for each; None: the same."""
    row = tl.program_id(0)
    token = row if tokens is None else tl.load(tokens + row * tokens_stride)
    if row >= tl.load(counts + COUNT):
        return
    token = token.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    values = read(x, token, columns, mask)
    write_total(x, values, token, columns, mask)
    tl.store(out + row.to(tl.int64) * out_stride + columns, values.to(out.dtype.element_ty), mask=mask)


def cast(
    x: Source,
    out: Tensor,
    *,
    width: int,
    tokens: Tensor | None = None,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:
    """out = x rounded to out's dtype; a split-K x is written to x.out besides. out: [rows, stride]; tokens:
    int32 [rows], the row of x for each of out; counts[count]: the rows there are."""
    block = columns_of(width)
    return Launch(
        kernel=cast_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            "x": source_operand(x),
            "tokens": tokens,
            "tokens_stride": 0 if tokens is None else tokens.stride(0),
            "out": out,
            "out_stride": out.stride(0),
            "counts": counts,
            "COUNT": count,
            "WIDTH": width,
            "BLOCK": block,
        },
    )


def select_rows(x: Source, tables: StepTables, out: Tensor, *, width: int, max_rows: int) -> Launch:
    """out[r] = x[token row of output row r]. Of a split-K x only these rows are added up, so nobody else may
    wait for its sum."""
    assert isinstance(x, Tensor) or x.out is None, "select_rows: the other rows of x are read, too"
    tokens = tables.rows[:, ROW_TOKEN]
    return cast(x, out, width=width, tokens=tokens, counts=tables.counts, count=ROWS, max_rows=max_rows)
