# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.
"""Decode: the states of a token's splits (attention_split), folded from the first on, give its attention."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.attention.online_softmax import (
    SPLIT,
    before_splits,
    finish,
    first_visible,
    fold,
)
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.tables import StepTables, span_code
from firelane.program.ops import Attention

CHUNKS = tl.constexpr(t.CHUNKS)
START, FIRST_TOKEN, FIRST_KV_SPLIT = (
    tl.constexpr(t.START),
    tl.constexpr(t.FIRST_TOKEN),
    tl.constexpr(t.FIRST_KV_SPLIT),
)
CHUNK_COLUMNS = tl.constexpr(t.CHUNK_COLUMNS)
IN_FLIGHT = tl.constexpr(8)  # splits whose states are on their way at once


@triton.jit
def attention_merge(  # limits: exempt (kernel: what it reads and writes)
    counts,
    chunks,
    partial,
    stats,
    sinks,
    out,
    out_stride,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SPAN: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    about = chunks + tl.program_id(0) * CHUNK_COLUMNS
    head = tl.program_id(1)
    num_chunks = tl.load(counts + CHUNKS)
    first_kv_split = tl.load(about + FIRST_KV_SPLIT)
    token = tl.load(about + FIRST_TOKEN).to(tl.int64)
    position = tl.load(about + START)
    if tl.program_id(0) >= num_chunks:
        return
    if first_kv_split < 0:
        return
    first_split = first_visible(position, SPAN) // SPLIT
    row = tl.arange(0, 1)  # one head: a state of one row
    column = tl.arange(0, COLUMNS)[None, :]
    held = column < VALUE_DIM
    state = first_kv_split * HEADS + head
    pairs = stats + state * 2 + row
    accs = partial + state * VALUE_DIM + column
    total_m, total_l, total = before_splits(sinks, head + row, 1, COLUMNS)
    for split in tl.range(first_split, tl.cdiv(position + 1, SPLIT), num_stages=IN_FLIGHT):
        m = tl.load(pairs + split * (2 * HEADS))
        l = tl.load(pairs + split * (2 * HEADS) + 1)  # noqa: E741
        acc = tl.load(accs + split * (HEADS * VALUE_DIM), mask=held, other=0.0)
        total_m, total_l, total = fold(total_m, total_l, total, m, l, acc)
    place = token * out_stride + head * VALUE_DIM + column
    tl.store(out + place, finish(total_l, total).to(out.dtype.element_ty), mask=held)


def merge_splits(
    tables: StepTables,
    *,
    op: Attention,
    partial: Tensor,
    stats: Tensor,
    sinks: Tensor | None = None,
    out: Tensor,
    max_chunks: int,
) -> Launch:
    """The row of `out` [max tokens, stride] of each chunk that `tables.kv_splits` covers; partial, stats: see
    attend_splits; sinks: float32 [heads]."""
    shape = op.shape
    return Launch(
        kernel=attention_merge,
        grid=(max_chunks, shape.heads),
        arguments={
            "counts": tables.counts,
            "chunks": tables.chunks,
            "partial": partial,
            "stats": stats,
            "sinks": sinks,
            "out": out,
            "out_stride": out.stride(0),
            "HEADS": shape.heads,
            "VALUE_DIM": shape.v_dim,
            "SPAN": span_code(op.span),
            "COLUMNS": power_of_two(shape.v_dim),
        },
        warps=1,
    )
