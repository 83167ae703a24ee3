# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.
"""Decode: the attention of one token over one split of its context ("Flash-Decoding", Dao et al., 2023). The
splits are folded by attention_merge.

Splits have a fixed size, so that a result does not depend on the batch. The heads of a group are padded to
64 rows: their products are then computed by the same instruction as those of a prompt's tile.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.attention.online_softmax import (
    SPLIT,
    add_tile,
    cache_rows,
    first_visible,
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

KV_SPLITS = tl.constexpr(t.KV_SPLITS)
START, FIRST_TOKEN = tl.constexpr(t.START), tl.constexpr(t.FIRST_TOKEN)
CHUNK_COLUMNS = tl.constexpr(t.CHUNK_COLUMNS)


@triton.jit
def attention_split(  # limits: exempt (kernel: what it reads and writes)
    q,
    keys,
    values,
    counts,
    chunks,
    kv_splits,
    block_tables,
    partial,
    stats,
    scale,
    q_stride,
    table_stride,
    GROUP: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SHARED: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPAN: tl.constexpr,
    CAP_SLOPE: tl.constexpr,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
    TAIL: tl.constexpr,
):
    """A program a KV head, a part of its group of heads, and some of the KV splits."""
    kv_head = tl.program_id(1) // PARTS
    row = tl.program_id(1) % PARTS * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)[None, :]
    tail_column = column
    if TAIL:
        tail_column = tl.arange(0, TAIL)[None, :]
    head = kv_head * GROUP + row
    held_rows = row[:, None] < GROUP
    held = held_rows & (column < VALUE_DIM)
    kv_split, step = tl.program_id(0), tl.num_programs(0)
    chunk, split = (
        tl.load(kv_splits + 2 * kv_split),
        tl.load(kv_splits + 2 * kv_split + 1),
    )  # garbage if there is none
    num_kv_splits = tl.load(counts + KV_SPLITS)
    about = chunks + tl.where(kv_split < num_kv_splits, chunk, 0) * CHUNK_COLUMNS
    position, token = tl.load(about + START), tl.load(about + FIRST_TOKEN)
    for kv_split in range(tl.program_id(0), num_kv_splits, step):
        # What the next KV split is about is read while this one is computed.
        another = kv_split + step < num_kv_splits
        next_chunk = tl.load(kv_splits + 2 * (kv_split + step), mask=another, other=0)
        next_split = tl.load(kv_splits + 2 * (kv_split + step) + 1, mask=another, other=0)

        table = block_tables + chunk.to(tl.int64) * table_stride
        q_row = q + token.to(tl.int64) * q_stride
        queries = tl.load(q_row + head[:, None] * HEAD_DIM + column, mask=held, other=0.0)
        tail_queries = None
        if TAIL:
            in_tail = held_rows & (tail_column < HEAD_DIM - VALUE_DIM)
            tail_queries = tl.load(
                q_row + head[:, None] * HEAD_DIM + VALUE_DIM + tail_column, mask=in_tail, other=0.0
            )
        split_first = split * SPLIT
        begin = tl.maximum(split_first, first_visible(position, SPAN) // TILE * TILE)
        end = tl.minimum(split_first + SPLIT, position + 1)
        m, l, acc = fresh(ROWS, COLUMNS)  # noqa: E741
        for first in tl.range(begin, end, TILE):
            written = first + tl.arange(0, TILE) < end
            rows = cache_rows(table, kv_head, first, end, TILE, PAGE, BLOCK_SIZE, HEAD_DIM)
            k = load_tile(keys, rows, written, column, VALUE_DIM, COLUMNS)
            tail = None
            if TAIL:
                tail = load_tile(keys + VALUE_DIM, rows, written, tail_column, HEAD_DIM - VALUE_DIM, TAIL)
            if SHARED:
                v = k
            else:
                if VALUE_DIM != HEAD_DIM:
                    rows = cache_rows(table, kv_head, first, end, TILE, PAGE, BLOCK_SIZE, VALUE_DIM)
                v = load_tile(values, rows, written, column, VALUE_DIM, COLUMNS)
            scores = products(queries, k, tail_queries, tail, CAP_SLOPE)
            scores = hide(scores, first, tl.full((1, 1), position, tl.int32), position, position, TILE, SPAN)
            m, l, acc = add_tile(m, l, acc, scores, v, scale)  # noqa: E741
        about = chunks + next_chunk * CHUNK_COLUMNS
        next_position, next_token = tl.load(about + START), tl.load(about + FIRST_TOKEN)

        place = kv_split * (KV_HEADS * GROUP) + head  # of MAX_KV_SPLITS: far below 2^31 elements
        tl.store(partial + place[:, None] * VALUE_DIM + column, acc, mask=held)
        tl.store(stats + 2 * place, m, mask=row < GROUP)
        tl.store(stats + 2 * place + 1, l, mask=row < GROUP)
        chunk, split, position, token = next_chunk, next_split, next_position, next_token


def attend_splits(  # limits: exempt (wrapper: what the kernel reads and writes)
    q: Tensor,
    cache: LayerCache,
    tables: StepTables,
    *,
    op: Attention,
    partial: Tensor,
    stats: Tensor,
    programs: int,
) -> Launch:
    """For each KV split of `tables.kv_splits`: the state of its token's heads over its split.

    q: [max tokens, stride]; cache: of q's dtype.
    partial: float32 [max_kv_splits, heads, value_dim]: acc; stats: float32 [max_kv_splits, heads, 2]: (m, l).
    programs: over which the KV splits are spread, for each KV head and part of it; see split_programs.
    """
    shape, queries = op.shape, QueryTile.of_decode(op)
    return Launch(
        kernel=attention_split,
        grid=(min(programs, tables.max_kv_splits), shape.kv_heads * queries.parts_of(shape.group)),
        arguments={
            "q": q,
            "keys": cache.keys,
            "values": cache.values,
            "counts": tables.counts,
            "chunks": tables.chunks,
            "kv_splits": tables.kv_splits,
            "block_tables": tables.block_tables[cache.group],
            "partial": partial,
            "stats": stats,
            **score_arguments(op),
            "q_stride": q.stride(0),
            "table_stride": tables.block_tables.stride(1),
            "GROUP": shape.group,
            "KV_HEADS": shape.kv_heads,
            **width_arguments(shape, queries),
            "PAGE": cache.page_stride,
            "BLOCK_SIZE": cache.block_size,
            "SPAN": span_code(op.span),
            "PARTS": queries.parts_of(shape.group),
            "ROWS": queries.rows,
            "TILE": queries.positions,
        },
        warps=queries.warps,
        stages=queries.stages,
    )
