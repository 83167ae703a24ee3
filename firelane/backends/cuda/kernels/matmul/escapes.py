"""Products of a matrix's escapes (matrices.py): dense tiles made from the lists, times the inputs that they
meet."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.device.shapes import ROW_BLOCK
from firelane.backends.cuda.weights.matrices import ROW_SHIFT

_ROW_BLOCK = tl.constexpr(ROW_BLOCK)
_ROW_SHIFT = tl.constexpr(ROW_SHIFT)
_INPUTS = tl.constexpr((1 << ROW_SHIFT) - 1)


@triton.jit
def sum_escapes(  # limits: exempt (kernel: a list, and the rows that it meets)
    starts,
    where,
    values,
    block,
    x_rows,
    valid,
    x_t_rows,
    x_t_stride,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """float32 [FEATURES, ROW_TILE]: the products of the escapes of blocks block .. block + FEATURES / 64.

    x_rows: where each of ROW_TILE rows begins, of which those that are valid are read; x_t_rows: where their
    first inputs lie in the transpose (transpose.py), read instead if it is there. Each block's list is walked
    by itself, STEP entries at a time, so that what a row gets depends on its own block alone. STEP is a
    multiple of 16, what one product instruction takes: any such gives the same bits.
    """
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    for part in tl.static_range(FEATURES // _ROW_BLOCK):
        begin = tl.load(starts + block + part)
        end = tl.load(starts + block + part + 1)
        for at in range(begin, end, STEP):
            total = add_entries(
                total, at, end, part, where, values, x_rows, valid, x_t_rows, x_t_stride,
                FEATURES, STEP,
            )  # fmt: skip
    return total


@triton.jit
def sum_escapes_of_two(  # limits: exempt (kernel: two lists, and the rows that they meet)
    starts,
    where,
    values,
    block,
    other_block,
    x_rows,
    valid,
    x_t_rows,
    x_t_stride,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """sum_escapes() of both: their lists are walked side by side, so that each waits for memory while the
    other does. A turn behind the end of a list adds zeros."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    other = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    for part in tl.static_range(FEATURES // _ROW_BLOCK):
        begin = tl.load(starts + block + part)
        end = tl.load(starts + block + part + 1)
        other_begin = tl.load(starts + other_block + part)
        other_end = tl.load(starts + other_block + part + 1)
        for at in range(0, tl.maximum(end - begin, other_end - other_begin), STEP):
            total = add_entries(
                total, begin + at, end, part, where, values, x_rows, valid, x_t_rows, x_t_stride,
                FEATURES, STEP,
            )  # fmt: skip
            other = add_entries(
                other, other_begin + at, other_end, part, where, values, x_rows, valid, x_t_rows, x_t_stride,
                FEATURES, STEP,
            )  # fmt: skip
    return total, other


@triton.jit
def add_entries(  # limits: exempt (kernel: a piece of a list, and the rows that it meets)
    total,
    at,
    end,
    part,
    where,
    values,
    x_rows,
    valid,
    x_t_rows,
    x_t_stride,
    FEATURES: tl.constexpr,
    STEP: tl.constexpr,
):
    """total + the products of the STEP entries from `at` on, of those before `end`, with block `part`."""
    features = tl.arange(0, FEATURES)
    entries = at + tl.arange(0, STEP)
    live = entries < end
    place = tl.load(where + entries, mask=live, other=-1)
    value = tl.load(values + entries, mask=live, other=0.0)
    row = (place >> _ROW_SHIFT) + part * _ROW_BLOCK
    inputs = place & _INPUTS
    mine = (row[None, :] == features[:, None]) & live[None, :]
    tile = tl.where(mine, value[None, :], 0.0).to(value.dtype)
    if x_t_rows is None:
        mask = live[:, None] & valid[None, :]
        met = tl.load(x_rows[None, :] + inputs[:, None], mask=mask, other=0.0)
    else:
        places = x_t_rows[None, :] + inputs[:, None] * x_t_stride
        met = tl.load(places, mask=live[:, None], other=0.0)
    return tl.dot(tile, met, total, input_precision="ieee")
