# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.
"""Prefill: the attention of a tile of queries, some consecutive tokens of a chunk and the heads of a group,
over their whole context: split by split, each folded as attention_merge folds those of a decoded token.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.attention.online_softmax import (
    SPLIT,
    add_tile,
    before_splits,
    cache_rows,
    finish,
    first_visible,
    fold,
    fresh,
    hide,
    load_tile,
    products,
    score_arguments,
)
from firelane.backends.cuda.kernels.attention.query_tile import QueryTile, width_arguments
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.kv_pages import LayerCache
from firelane.backends.cuda.step.tables import StepTables, span_code
from firelane.program.ops import Attention

TILES = tl.constexpr(t.TILES)
START, LENGTH, FIRST_TOKEN = tl.constexpr(t.START), tl.constexpr(t.LENGTH), tl.constexpr(t.FIRST_TOKEN)
CHUNK_COLUMNS = tl.constexpr(t.CHUNK_COLUMNS)
TILE_ROWS = 128


def tile_tokens(group: int) -> int:
    """Consecutive tokens of a chunk whose queries, of a group of heads, fill a tile."""
    return max(1, TILE_ROWS // group)


@triton.jit
def attention_tiles(  # limits: exempt (kernel: what it reads and writes)
    q,
    keys,
    values,
    counts,
    chunks,
    tiles,
    block_tables,
    sinks,
    out,
    scale,
    q_stride,
    out_stride,
    table_stride,
    TOKENS: tl.constexpr,
    PARTS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    CAP_SLOPE: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAIL: tl.constexpr,
    SLICE: tl.constexpr,
):
    """A program a part of a tile, a KV head and a slice of the values' columns."""
    kv_head = tl.program_id(1)
    tile = tl.load(counts + TILES) - 1 - tl.program_id(0) // PARTS  # a chunk's last tiles take the longest
    if tile < 0:
        return
    chunk = tl.load(tiles + 2 * tile)
    tile_first = tl.load(tiles + 2 * tile + 1)
    start = tl.load(chunks + chunk * CHUNK_COLUMNS + START)
    length = tl.load(chunks + chunk * CHUNK_COLUMNS + LENGTH)
    token_row = tl.load(chunks + chunk * CHUNK_COLUMNS + FIRST_TOKEN)
    table = block_tables + chunk.to(tl.int64) * table_stride

    row = tl.program_id(0) % PARTS * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    tail_column = column
    if TAIL:
        tail_column = tl.arange(0, TAIL)[None, :]
    token = tile_first + row // GROUP
    held_rows = (row < TOKENS * GROUP) & (token < length)
    held = held_rows[:, None] & (column < VALUE_DIM)
    head = kv_head * GROUP + row % GROUP
    token_at = (token_row + token).to(tl.int64)[:, None]
    q_rows = q + token_at * q_stride + head[:, None] * HEAD_DIM
    queries = tl.load(q_rows + column, mask=held, other=0.0)
    tail_queries = None
    if TAIL:
        in_tail = held_rows[:, None] & (tail_column < HEAD_DIM - VALUE_DIM)
        tail_queries = tl.load(q_rows + VALUE_DIM + tail_column, mask=in_tail, other=0.0)

    position = (start + token)[:, None]
    tile_start = start + tile_first
    end = start + tl.minimum(tile_first + TOKENS, length)
    begin = first_visible(tile_start, SPAN) // TILE * TILE
    value_column = column
    if SLICE != COLUMNS:
        value_column = tl.program_id(2) * SLICE + tl.arange(0, SLICE)[None, :]
    total_m, total_l, total = before_splits(sinks, head, ROWS, SLICE)
    m, l, acc = fresh(ROWS, SLICE)  # noqa: E741
    for first in tl.range(begin, end, TILE):  # a loop for each split would run dry at the end of each
        written = first + tl.arange(0, TILE) < end
        rows = cache_rows(table, kv_head, first, end, TILE, PAGE, BLOCK_SIZE, HEAD_DIM)
        k = load_tile(keys, rows, written, column, VALUE_DIM, COLUMNS)
        tail = None
        if TAIL:
            tail = load_tile(keys + VALUE_DIM, rows, written, tail_column, HEAD_DIM - VALUE_DIM, TAIL)
        if SHARED and SLICE == COLUMNS:
            v = k
        else:
            if not SHARED and VALUE_DIM != HEAD_DIM:
                rows = cache_rows(table, kv_head, first, end, TILE, PAGE, BLOCK_SIZE, VALUE_DIM)
            v = load_tile(values, rows, written, value_column, VALUE_DIM, SLICE)
        scores = products(queries, k, tail_queries, tail, CAP_SLOPE)
        if first // SPLIT * SPLIT == first:
            total_m, total_l, total = fold(total_m, total_l, total, m, l, acc)
            m, l, acc = fresh(ROWS, SLICE)  # noqa: E741
        scores = hide(scores, first, position, tile_start, end - 1, TILE, SPAN)
        m, l, acc = add_tile(m, l, acc, scores, v, scale)  # noqa: E741
    total_m, total_l, total = fold(total_m, total_l, total, m, l, acc)
    total = finish(total_l, total)
    if SLICE != COLUMNS:
        held = held_rows[:, None] & (value_column < VALUE_DIM)
    place = head[:, None] * VALUE_DIM + value_column
    tl.store(out + token_at * out_stride + place, total.to(out.dtype.element_ty), mask=held)


def attend_tiles(  # limits: exempt (wrapper: what the kernel reads and writes)
    q: Tensor,
    cache: LayerCache,
    tables: StepTables,
    out: Tensor,
    *,
    op: Attention,
    sinks: Tensor | None = None,
    tokens: int,
    max_tiles: int,
) -> Launch:
    """The rows of `out` of the chunks that `tables.tiles` covers.

    q, out: [max tokens, stride]; cache: of their dtype. sinks: float32 [heads]. tokens: of a tile in
    `tables.tiles`, at most tile_tokens() of the group.
    """
    shape, queries = op.shape, QueryTile.of_prompts(op)
    parts = queries.parts_of(tokens * shape.group)
    return Launch(
        kernel=attention_tiles,
        grid=(max_tiles * parts, shape.kv_heads, queries.columns // queries.value_slice),
        arguments={
            "q": q,
            "keys": cache.keys,
            "values": cache.values,
            "counts": tables.counts,
            "chunks": tables.chunks,
            "tiles": tables.tiles,
            "block_tables": tables.block_tables[cache.group],
            "sinks": sinks,
            "out": out,
            **score_arguments(op),
            "q_stride": q.stride(0),
            "out_stride": out.stride(0),
            "table_stride": tables.block_tables.stride(1),
            "TOKENS": tokens,
            "PARTS": parts,
            "GROUP": shape.group,
            **width_arguments(shape, queries),
            "PAGE": cache.page_stride,
            "BLOCK_SIZE": cache.block_size,
            "SPAN": span_code(op.span),
            "ROWS": queries.rows,
            "TILE": queries.positions,
            "SLICE": queries.value_slice,
        },
        warps=queries.warps,
        stages=queries.stages,
    )
