"""RMS norms of heads, of each by itself or of all heads of a row together. A head is held as its two halves,
as it is rotated."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sums import read
from firelane.program.ops import HeadNorm

NO_NORM, OF_EACH, OF_ALL = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)


@triton.jit
def read_halves(x, row, columns, mask, HALF: tl.constexpr):
    """Numbers at `columns` of a SourceOperand's row, and HALF behind them."""
    return read(x, row, columns, mask), read(x, row, columns + HALF, mask)


@triton.jit
def mean_square_of_each(low, high, HALF: tl.constexpr):
    """[heads, 1] of the halves [heads, HALF, padded with zeros]."""
    return ((tl.sum(low * low, axis=1) + tl.sum(high * high, axis=1)) / (2 * HALF))[:, None]


@triton.jit
def mean_square_of_all(low, at, x, row, first, COUNT: tl.constexpr, HEAD_DIM: tl.constexpr):
    """One number, of COUNT heads from `first` on; every program that has some of them computes it anew, in
    the same order. low: a block like those that are read."""
    HALF: tl.constexpr = HEAD_DIM // 2
    HEADS: tl.constexpr = low.shape[0]
    squares = tl.zeros_like(low)
    for start in range(0, COUNT, HEADS):
        head = start + tl.arange(0, HEADS)[:, None]
        mask = (head < COUNT) & (at < HALF)
        some_low, some_high = read_halves(x, row, (first + head) * HEAD_DIM + at, mask, HALF=HALF)
        squares += some_low * some_low + some_high * some_high
    return tl.sum(tl.sum(squares, axis=1), axis=0) / (COUNT * HEAD_DIM)


@triton.jit
def normalised(low, high, mean_square, weight, places, mask, eps, HALF: tl.constexpr):
    """The halves over their root mean square, times the weight at `places` and HALF behind, if there is
    one."""
    scale = tl.rsqrt(mean_square + eps)
    low, high = low * scale, high * scale
    if weight is not None:
        low *= tl.load(weight + places, mask=mask, other=0.0).to(tl.float32)
        high *= tl.load(weight + places + HALF, mask=mask, other=0.0).to(tl.float32)
    return low, high


@triton.jit
def normalised_heads(  # limits: exempt (kernel: heads, and where they were read)
    low,
    high,
    head,
    at,
    x,
    row,
    first,
    weight,
    eps,
    NORM: tl.constexpr,
    COUNT: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """The halves of heads number `head`, of COUNT from head `first` of the row on, normalised. at: the
    dimensions of the low half."""
    HALF: tl.constexpr = HEAD_DIM // 2
    if NORM == OF_ALL:
        mean_square = mean_square_of_all(low, at, x, row, first, COUNT=COUNT, HEAD_DIM=HEAD_DIM)
        mask = (head < COUNT) & (at < HALF)
        low, high = normalised(low, high, mean_square, weight, head * HEAD_DIM + at, mask, eps, HALF=HALF)
    else:
        mean_square = mean_square_of_each(low, high, HALF=HALF)
        low, high = normalised(low, high, mean_square, weight, at, at < HALF, eps, HALF=HALF)
    return low, high


def norm_of(norm: HeadNorm | None) -> int:
    """Which one of the three."""
    if norm is None:
        return NO_NORM.value
    return OF_ALL.value if norm.whole else OF_EACH.value
