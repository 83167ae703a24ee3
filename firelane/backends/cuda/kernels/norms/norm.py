"""RMSNorm; a split-K input is added up on the way."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import (
    EAGER_ROWS,
    eager_options,
    power_of_two,
    read,
    source_operand,
    write_total,
)
from firelane.backends.cuda.step.split_k import Source


@triton.jit
def normed(x, eps, WIDTH: tl.constexpr):
    """x / sqrt(mean(x^2) + eps) of a row, four columns beside each other: [columns / 4, 4]."""
    mean_square = tl.sum(tl.sum(x * x, axis=1), axis=0) / WIDTH
    return x * tl.rsqrt(mean_square + eps)


@triton.jit
def rms_norm_kernel(  # limits: exempt (kernel: a norm's operands)
    x,
    weight,
    added,
    added_stride,
    scalar,
    out,
    out_stride,
    counts,
    eps,
    COUNT: tl.constexpr,
    EAGER: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a row, or a group of its columns; four columns beside each other a thread: then all it reads
    and writes lies in the registers alike, whatever its dtype, and the order of the sum follows from the
    width alone."""
    row = tl.program_id(0)
    live = row < tl.load(counts + COUNT)
    if not EAGER and not live:
        return
    row = row.to(tl.int64)
    columns = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    mask = columns < WIDTH
    columns += tl.program_id(1) * WIDTH
    if weight is not None:
        factors = tl.load(weight + columns, mask=mask, other=0.0).to(tl.float32)
    if EAGER and BLOCK <= 8192:  # beyond, registers do not suffice
        tl.debug_barrier()  # or the compiler loads the weight late, and waits for it once more
    values = read(x, row, columns, mask)
    write_total(x, values, row, columns, mask & live)
    y = normed(values, eps, WIDTH=WIDTH)
    if weight is not None:
        y *= factors
    if added is not None:
        y += tl.load(added + row * added_stride + columns, mask=mask, other=0.0)
    if scalar is not None:
        y *= tl.load(scalar)
    tl.store(out + row * out_stride + columns, y.to(out.dtype.element_ty), mask=mask & live)


def warps_of(block: int) -> int:
    """The order of the sum follows from it, so it may depend on the width alone."""
    return min(32, max(1, block // 128))


def rms_norm(  # limits: exempt (kernel: as the op, and the rows of the bucket)
    x: Source,
    weight: Tensor | None,
    out: Tensor,
    *,
    residual: Tensor | None = None,
    scalar: Tensor | None = None,
    width: int,
    groups: int = 1,
    eps: float,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:
    """out = (x / sqrt(mean(x^2) + eps) * weight + residual) * scalar in float32, rounded to out's dtype, the
    mean of each of `groups` parts of a row by itself; a split-K x is written to x.out besides. weight:
    [width]; residual: float32 [rows, stride]; scalar: [1]; out: bf16 or float32 [rows, stride], overlaps
    nothing else; counts[count]: the rows there are."""
    block = power_of_two(width // groups)
    return Launch(
        kernel=rms_norm_kernel,
        grid=(max_rows, groups),
        arguments={
            "x": source_operand(x),
            "weight": weight,
            "added": residual,
            "added_stride": None if residual is None else residual.stride(0),
            "scalar": scalar,
            "out": out,
            "out_stride": out.stride(0),
            "counts": counts,
            "eps": eps,
            "COUNT": count,
            "EAGER": max_rows <= EAGER_ROWS,
            "WIDTH": width // groups,
            "BLOCK": block,
        },
        warps=warps_of(block),
        options=eager_options(max_rows),
    )
