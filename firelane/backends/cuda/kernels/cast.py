"""Cast: a value rounded to another dtype; a split-K one is added up on the way."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.kernels.sums import columns_of, read, source_arguments, total_arguments
from firelane.backends.cuda.launch import Launch
from firelane.backends.cuda.split_k import Source


@triton.jit
def cast_kernel(  # limits: exempt (kernel: a Source in pointers and strides)
    parts,
    part_stride,
    row_stride,
    bias,
    residual,
    residual_stride,
    total,
    total_stride,
    out,
    out_stride,
    counts,
    PARTS: tl.constexpr,
    SCALE: tl.constexpr,
    COUNT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    row = row.to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < WIDTH
    x = read(
        parts, part_stride, row_stride, bias, residual, residual_stride, row, columns, mask,
        PARTS=PARTS, SCALE=SCALE,
    )  # fmt: skip
    if total is not None:
        tl.store(total + row * total_stride + columns, x, mask=mask)
    tl.store(out + row * out_stride + columns, x.to(out.dtype.element_ty), mask=mask)


def cast(x: Source, out: Tensor, *, width: int, counts: Tensor, count: int, max_rows: int) -> Launch:
    """out = x rounded to out's dtype; a split-K x is written to x.out besides. out: [rows, stride];
    counts[count]: the rows there are."""
    block = columns_of(width)
    return Launch(
        kernel=cast_kernel,
        grid=(max_rows, -(-width // block)),
        arguments={
            **source_arguments(x),
            **total_arguments(x),
            "out": out,
            "out_stride": out.stride(0),
            "counts": counts,
            "COUNT": count,
            "WIDTH": width,
            "BLOCK": block,
        },
    )
