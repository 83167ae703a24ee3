"""Rows by expert: a step's picks sorted into RowGroups, on the device, in a grid that does not depend on
them."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.step.row_groups import TILE_COLUMNS, RowGroups

MOST_AT_ONCE = 4096
LEAST_BINS = 32


@triton.jit
def group_rows_kernel(  # limits: exempt (kernel: pointers and sizes)
    picks,
    picks_stride,
    order,
    tiles,
    num_tiles,
    counts,
    COUNT: tl.constexpr,
    PICKS: tl.constexpr,
    FIRST: tl.constexpr,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    ROW_TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program an expert, of EXPERTS from id FIRST on. Each counts all picks: so it knows where its own
    begin without waiting for others."""
    expert = tl.program_id(0)
    entries = tl.load(counts + COUNT) * PICKS
    found = tl.zeros((BINS,), dtype=tl.int32)
    for first in range(0, entries, BLOCK):
        found += tl.histogram(_picks(picks, picks_stride, first, entries, PICKS, FIRST, EXPERTS, BLOCK), BINS)
    ids = tl.arange(0, BINS)
    found = tl.where(ids < EXPERTS, found, 0)
    row_tiles = (found + (ROW_TILE - 1)) // ROW_TILE
    start = tl.sum(tl.where(ids < expert, found, 0), axis=0)
    tile = tl.sum(tl.where(ids < expert, row_tiles, 0), axis=0)
    mine = tl.sum(tl.where(ids == expert, found, 0), axis=0)
    if expert == 0:
        tl.store(num_tiles, tl.sum(row_tiles, axis=0))
    for done in range(0, mine, ROW_TILE):
        tl.store(tiles + tile * COLUMNS, expert)
        tl.store(tiles + tile * COLUMNS + 1, start + done)
        tl.store(tiles + tile * COLUMNS + 2, min(ROW_TILE, mine - done))
        tile += 1
    if mine > 0:
        for first in range(0, entries, BLOCK):
            of_me = _picks(picks, picks_stride, first, entries, PICKS, FIRST, EXPERTS, BLOCK) == expert
            ranks = tl.cumsum(of_me.to(tl.int32), 0)
            tl.store(order + start + ranks - 1, first + tl.arange(0, BLOCK), mask=of_me)
            start += tl.sum(of_me.to(tl.int32), axis=0)


@triton.jit
def _picks(
    picks,
    picks_stride,
    first,
    entries,
    PICKS: tl.constexpr,
    FIRST: tl.constexpr,
    EXPERTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Picks of BLOCK entries from `first` on, counted from FIRST; EXPERTS behind the last, and of those that
    are not here."""
    entry = first + tl.arange(0, BLOCK)
    places = picks + entry // PICKS * picks_stride + entry % PICKS
    found = tl.load(places, mask=entry < entries, other=FIRST + EXPERTS) - FIRST
    return tl.where((found >= 0) & (found < EXPERTS), found, EXPERTS)


def group_rows(
    picks: Tensor,
    groups: RowGroups,
    *,
    experts: int,
    first: int = 0,
    width: int,
    row_tile: int,
    counts: Tensor,
    count: int,
    max_rows: int,
) -> Launch:
    """picks: int32 [rows, stride], `width` of each row; those of experts from `first` on count. groups: with
    room for max_rows * width entries, and most_tiles()."""
    block = min(MOST_AT_ONCE, max(LEAST_BINS, power_of_two(max_rows * width)))
    return Launch(
        kernel=group_rows_kernel,
        grid=(experts,),
        arguments={
            "picks": picks,
            "picks_stride": picks.stride(0),
            "order": groups.order,
            "tiles": groups.tiles,
            "num_tiles": groups.count,
            "counts": counts,
            "COUNT": count,
            "PICKS": width,
            "FIRST": first,
            "EXPERTS": experts,
            "BINS": max(LEAST_BINS, power_of_two(experts + 1)),
            "ROW_TILE": row_tile,
            "COLUMNS": TILE_COLUMNS,
            "BLOCK": block,
        },
        warps=4 if block <= 1024 else 8,
    )
