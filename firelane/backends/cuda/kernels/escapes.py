"""Products of a matrix's escapes (matrices.py): dense tiles made from the lists, times the inputs that they
meet."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.matrices import ROW_SHIFT
from firelane.backends.cuda.shapes import ROW_BLOCK

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_ROW_SHIFT = tl.constexpr(ROW_SHIFT)
_INPUTS = tl.constexpr((1 << ROW_SHIFT) - 1)


@triton.jit
def sum_escapes(  # limits: exempt (kernel: a list, and the rows that it meets)
    starts,
    where,
    values,
    block,
    x,
    x_stride,
    x_t,
    x_t_stride,
    count,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """float32 [FEATURES, ROW_TILE]: the products of the escapes of blocks block .. block + FEATURES / 64.

    x: the first of ROW_TILE rows, of which `count` are read; x_t: the same transposed (transpose.py),
    read instead if it is there. Each block's list is walked by itself, STEP entries at a time, so that what a
    row gets depends on its own block alone. STEP is a multiple of 16, what one product instruction takes: any
    such gives the same bits.
    """
    tokens = tl.arange(0, ROW_TILE)
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    features = tl.arange(0, FEATURES)
    for part in tl.static_range(FEATURES // _ROW_BLOCK):
        begin = tl.load(starts + block + part)
        end = tl.load(starts + block + part + 1)
        for at in range(begin, end, STEP):
            entries = at + tl.arange(0, STEP)
            live = entries < end
            place = tl.load(where + entries, mask=live, other=-1)
            value = tl.load(values + entries, mask=live, other=0.0)
            row = (place >> _ROW_SHIFT) + part * _ROW_BLOCK
            inputs = place & _INPUTS
            mine = (row[None, :] == features[:, None]) & live[None, :]
            tile = tl.where(mine, value[None, :], 0.0).to(value.dtype)
            if x_t is None:
                mask = live[:, None] & (tokens < count)[None, :]
                met = tl.load(x + tokens[None, :] * x_stride + inputs[:, None], mask=mask, other=0.0)
            else:
                places = x_t + inputs[:, None] * x_t_stride + tokens[None, :]
                met = tl.load(places, mask=live[:, None], other=0.0)
            total = tl.dot(tile, met, total, input_precision="ieee")
    return total
