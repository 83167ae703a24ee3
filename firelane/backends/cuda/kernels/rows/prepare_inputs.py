"""The step's first kernel: what the host has staged, and of each chunk's slot what the step needs, from the
host's memory to the device's.

A read over the bus takes a microsecond or two whatever its size. So a program waits for two of them, wide
ones: for its chunk's record, then for tokens and block table together.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.device.shapes import ATTENTION_SPLIT, ATTENTION_TILE
from firelane.backends.cuda.step import tables as fields
from firelane.backends.cuda.step.tables import StepTables

WORDS = 256  # that a program reads at once: one a thread, so that a warp's are beside each other
PAIRS = 128  # that a program writes at once
WARPS = WORDS // 32

CHUNKS = tl.constexpr(fields.CHUNKS)
ROWS = tl.constexpr(fields.ROWS)
NUM_COUNTS = tl.constexpr(fields.NUM_COUNTS)
SLOT = tl.constexpr(fields.SLOT)
START = tl.constexpr(fields.START)
LENGTH = tl.constexpr(fields.LENGTH)
FIRST_TOKEN = tl.constexpr(fields.FIRST_TOKEN)
FIRST_KV_SPLIT = tl.constexpr(fields.FIRST_KV_SPLIT)
FIRST_TILE = tl.constexpr(fields.FIRST_TILE)
CHUNK_COLUMNS = tl.constexpr(fields.CHUNK_COLUMNS)
ROW_COLUMNS = tl.constexpr(fields.ROW_COLUMNS)
TILE = tl.constexpr(ATTENTION_TILE)


@triton.jit
def field(record, index: tl.constexpr):
    """One number of a record that was read as a whole."""
    return tl.sum(tl.where(tl.arange(0, record.shape[0]) == index, record, 0), axis=0)


@triton.jit
def put_pairs(pairs, first, count, chunk, step, PAIRS: tl.constexpr):
    """pairs[first + j] = (chunk, step * j) for j < count."""
    WORDS: tl.constexpr = 2 * PAIRS
    for at in range(0, 2 * count, WORDS):
        word = at + tl.arange(0, WORDS)
        value = tl.where(word % 2 == 0, chunk, word // 2 * step)
        tl.store(pairs + 2 * first + word, value, mask=word < 2 * count)


@triton.jit
def copy_rows(staged_counts, staged_rows, counts, rows, index, WORDS: tl.constexpr):
    """Program `index` of those that copy what is not a chunk's: its share of the rows; the first the counts,
    too."""
    some = tl.arange(0, NUM_COUNTS)
    record = tl.load(staged_counts + some)
    tl.store(counts + some, record, mask=index == 0)
    word = index * WORDS + tl.arange(0, WORDS)
    mask = word < field(record, ROWS) * ROW_COLUMNS
    tl.store(rows + word, tl.load(staged_rows + word, mask=mask, other=0), mask=mask)


@triton.jit
def first_kept(position, span):
    """contract.kept_from of a span's code."""
    size = tl.maximum(tl.abs(span), 1)
    window = tl.maximum(position - size + 1, 0)
    first = tl.where(span > 0, window, tl.where(span < 0, position // size * size, 0))
    return first // TILE * TILE


@triton.jit
def prepare_inputs_kernel(  # limits: exempt (kernel: tables in pointers and strides)
    staged_counts,
    staged_chunks,
    staged_rows,
    slot_tokens,
    slot_tokens_stride,
    slot_tables,
    slot_tables_group,
    slot_tables_stride,
    counts,
    chunks,
    rows,
    token_ids,
    positions,
    token_chunk,
    block_tables,
    block_tables_group,
    block_tables_stride,
    spans,
    kv_splits,
    tiles,
    max_chunks,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    TILE_TOKENS: tl.constexpr,
    WORDS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """A program a chunk and cache group; behind the chunks those that copy rows."""
    chunk, group = tl.program_id(0), tl.program_id(1)
    if chunk >= max_chunks:
        if group == 0:
            copy_rows(staged_counts, staged_rows, counts, rows, chunk - max_chunks, WORDS=WORDS)
        return
    some = chunk * CHUNK_COLUMNS + tl.arange(0, CHUNK_COLUMNS)
    record = tl.load(staged_chunks + some)
    live = chunk < tl.load(staged_counts + CHUNKS)  # no branch: it would keep the record waiting
    slot = field(record, SLOT).to(tl.int64)
    start = field(record, START)
    length = tl.where(live, field(record, LENGTH), 0)
    context = tl.where(live, start + length, 0)
    kept = first_kept(start, tl.load(spans + group)) // BLOCK_SIZE
    num_blocks = tl.where(live, (context + BLOCK_SIZE - 1) // BLOCK_SIZE - kept, 0)
    slot_tokens += slot * slot_tokens_stride + start
    slot_tables += group.to(tl.int64) * slot_tables_group + slot * slot_tables_stride + kept
    block_tables += group.to(tl.int64) * block_tables_group + chunk.to(tl.int64) * block_tables_stride + kept
    length = tl.where(group == 0, length, 0)  # what has no group is copied once
    first_token = field(record, FIRST_TOKEN)
    for at in range(0, tl.maximum(length, num_blocks), WORDS):
        word = at + tl.arange(0, WORDS)
        ids = tl.load(slot_tokens + word, mask=word < length, other=0)
        blocks = tl.load(slot_tables + word, mask=word < num_blocks, other=0)
        tl.store(token_ids + first_token + word, ids, mask=word < length)
        tl.store(block_tables + word, blocks, mask=word < num_blocks)
        tl.store(positions + first_token + word, start + word, mask=word < length)
        tl.store(token_chunk + first_token + word, chunk + word * 0, mask=word < length)
    if group > 0:
        return
    tl.store(chunks + some, record, mask=live)
    first_kv_split, first_tile = field(record, FIRST_KV_SPLIT), field(record, FIRST_TILE)
    if first_kv_split >= 0:
        put_pairs(kv_splits, first_kv_split, (context + SPLIT - 1) // SPLIT, chunk, 1, PAIRS=PAIRS)
    if first_tile >= 0:
        put_pairs(
            tiles, first_tile, (length + TILE_TOKENS - 1) // TILE_TOKENS, chunk, TILE_TOKENS, PAIRS=PAIRS
        )


def prepare_inputs(  # limits: exempt (kernel: sizes of a bucket)
    tables: StepTables,
    state: PinnedState,
    *,
    parity: int = 0,
    block_size: int,
    tile_tokens: int,
    max_chunks: int,
    max_rows: int,
) -> Launch:
    """Fill the device's tables for one step, as far as its counts go; what lies behind stays as it was.
    parity: of the staged set that it is read from."""
    staged = tables.staged[parity]
    row_programs = max(1, -(-staged.rows[:max_rows].numel() // WORDS))
    return Launch(
        kernel=prepare_inputs_kernel,
        grid=(max_chunks + row_programs, len(tables.block_tables)),
        arguments={
            "staged_counts": staged.counts,
            "staged_chunks": staged.chunks,
            "staged_rows": staged.rows,
            "slot_tokens": state.tokens,
            "slot_tokens_stride": state.tokens.stride(0),
            "slot_tables": state.block_tables,
            "slot_tables_group": state.block_tables.stride(0),
            "slot_tables_stride": state.block_tables.stride(1),
            "counts": tables.counts,
            "chunks": tables.chunks,
            "rows": tables.rows,
            "token_ids": tables.token_ids,
            "positions": tables.positions,
            "token_chunk": tables.token_chunk,
            "block_tables": tables.block_tables,
            "block_tables_group": tables.block_tables.stride(0),
            "block_tables_stride": tables.block_tables.stride(1),
            "spans": tables.spans,
            "kv_splits": tables.kv_splits,
            "tiles": tables.tiles,
            "max_chunks": max_chunks,
            "BLOCK_SIZE": block_size,
            "SPLIT": ATTENTION_SPLIT,
            "TILE_TOKENS": tile_tokens,
            "WORDS": WORDS,
            "PAIRS": PAIRS,
        },
        warps=WARPS,
    )
