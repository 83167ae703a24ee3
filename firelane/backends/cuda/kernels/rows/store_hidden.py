"""Rows for which there is an output, given to the host as they are."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import columns_of
from firelane.backends.cuda.step.tables import PARITY, ROW_KIND, ROWS, StepTables
from firelane.contract import EMBED


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
