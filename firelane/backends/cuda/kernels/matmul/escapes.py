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
def sum_escapes(escapes, block, met, FEATURES: tl.constexpr, ROW_TILE: tl.constexpr, STEP: tl.constexpr):
    """float32 [FEATURES, ROW_TILE]: the products of the escapes of blocks block .. block + FEATURES / 64.

    met: TileRows. Each block's list is walked by itself, STEP entries at a time, so that what a row gets
    depends on its own block alone. STEP is a multiple of 16, what one product instruction takes: any such
    gives the same bits.
    """
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    for part in tl.static_range(FEATURES // _ROW_BLOCK):
        begin = tl.load(escapes.starts + block + part)
        end = tl.load(escapes.starts + block + part + 1)
        for at in range(begin, end, STEP):
            total = add_entries(total, escapes, at, end, part, met, FEATURES, STEP)
    return total


@triton.jit
def sum_escapes_of_two(
    escapes,
    block,
    other_block,
    met,
    FEATURES: tl.constexpr,
    ROW_TILE: tl.constexpr,
    STEP: tl.constexpr,
):
    """sum_escapes() of both: their lists are walked side by side, so that each waits for memory while the
    other does. A turn behind the end of a list adds zeros."""
    total = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    other = tl.zeros((FEATURES, ROW_TILE), dtype=tl.float32)
    for part in tl.static_range(FEATURES // _ROW_BLOCK):
        begin = tl.load(escapes.starts + block + part)
        end = tl.load(escapes.starts + block + part + 1)
        other_begin = tl.load(escapes.starts + other_block + part)
        other_end = tl.load(escapes.starts + other_block + part + 1)
        for at in range(0, tl.maximum(end - begin, other_end - other_begin), STEP):
            total = add_entries(total, escapes, begin + at, end, part, met, FEATURES, STEP)
            other = add_entries(other, escapes, other_begin + at, other_end, part, met, FEATURES, STEP)
    return total, other


@triton.jit
def add_entries(
    total,
    escapes,
    at,
    end,
    part,
    met,
    FEATURES: tl.constexpr,
    STEP: tl.constexpr,
):
    """total + the products of the STEP entries from `at` on, of those before `end`, with block `part`."""
    features = tl.arange(0, FEATURES)
    entries = at + tl.arange(0, STEP)
    live = entries < end
    place = tl.load(escapes.where + entries, mask=live, other=-1)
    value = tl.load(escapes.numbers + entries, mask=live, other=0.0)
    row = (place >> _ROW_SHIFT) + part * _ROW_BLOCK
    inputs = place & _INPUTS
    mine = (row[None, :] == features[:, None]) & live[None, :]
    tile = tl.where(mine, value[None, :], 0.0).to(value.dtype)
    if met.transposed is None:
        mask = live[:, None] & met.valid[None, :]
        x = tl.load(met.rows[None, :] + inputs[:, None], mask=mask, other=0.0)
    else:
        places = met.transposed[None, :] + inputs[:, None] * met.transposed_stride
        x = tl.load(places, mask=live[:, None], other=0.0)
    return tl.dot(tile, x, total, input_precision="ieee")
