"""RopeAndCache: queries, keys and values apart, normalised, rotated, and written where they belong."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.norms.head_norm import (
    NO_NORM,
    mean_square_of_each,
    norm_of,
    normalised,
    normalised_heads,
    read_halves,
)
from firelane.backends.cuda.kernels.sums import EAGER_ROWS, eager_options, power_of_two, source_operand
from firelane.backends.cuda.step.kv_pages import LayerCache
from firelane.backends.cuda.step.split_k import Source
from firelane.backends.cuda.step.tables import TOKENS, StepTables
from firelane.program.ops import RopeAndCache

HEADS = 8  # of one program
DIMENSIONS = 2048  # of its heads together: what its registers hold


@triton.jit
def rotated(low, high, cos, sin):
    """The halves [heads, head_dim / 2], rotated. cos, sin: [1, head_dim / 2]."""
    return low * cos - high * sin, high * cos + low * sin


@triton.jit
def put(out, places, low, high, mask, HALF: tl.constexpr):
    """Both halves, rounded to out's dtype."""
    tl.store(out + places, low.to(out.dtype.element_ty), mask=mask)
    tl.store(out + places + HALF, high.to(out.dtype.element_ty), mask=mask)


@triton.jit
def rope_and_cache_kernel(  # limits: exempt (kernel: the op's operands, tables and a cache)
    qkv,
    positions,
    token_chunk,
    block_tables,
    block_tables_stride,
    counts,
    rotary,
    temperature,
    q_norm,
    k_norm,
    eps,
    keys,
    values,
    out,
    out_stride,
    COUNT: tl.constexpr,
    EAGER: tl.constexpr,
    NORM: tl.constexpr,
    NORM_VALUES: tl.constexpr,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program a token and HEADS heads of one kind: first those of queries, then of keys, then of values.

    A pair of dimensions that rotate together lies half a head apart, so a program holds the two halves of
    its heads as two blocks [HEADS, BLOCK].
    """
    HALF: tl.constexpr = HEAD_DIM // 2
    Q_PROGRAMS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS
    KV_PROGRAMS: tl.constexpr = (KV_HEADS + HEADS - 1) // HEADS
    row, program = tl.program_id(0), tl.program_id(1)
    live = row < tl.load(counts + COUNT)
    if not EAGER and not live:
        return
    position = tl.load(positions + row)
    chunk = tl.load(token_chunk + row).to(tl.int64)
    if EAGER:
        tl.debug_barrier()  # or the compiler loads these late, although other addresses depend on them
    is_q = program < Q_PROGRAMS
    is_v = program >= Q_PROGRAMS + KV_PROGRAMS
    before = tl.where(is_q, 0, tl.where(is_v, Q_PROGRAMS + KV_PROGRAMS, Q_PROGRAMS))
    head = (program - before) * HEADS + tl.arange(0, HEADS)[:, None]
    base = tl.where(is_q, 0, tl.where(is_v, Q_HEADS + KV_HEADS, Q_HEADS))
    at = tl.arange(0, BLOCK)[None, :]
    mask = (head < tl.where(is_q, Q_HEADS, KV_HEADS)) & (at < HALF)
    columns = (base + head) * HEAD_DIM + at
    row64 = row.to(tl.int64)
    if VALUE_DIM != HEAD_DIM:
        mask = mask & (is_v == 0)  # read below
    low, high = read_halves(qkv, row64, columns, mask, HALF=HALF)
    mask = mask & live
    if rotary is not None:
        angles = rotary + position.to(tl.int64) * HEAD_DIM + at
        has_angle = (at < HALF) & live
        cos = tl.load(angles, mask=has_angle, other=0.0)
        sin = tl.load(angles + HALF, mask=has_angle, other=0.0)
    entry = chunk * block_tables_stride + position // BLOCK_SIZE
    block = tl.load(block_tables + entry, mask=live, other=0).to(tl.int64)
    if is_q:
        if NORM != NO_NORM:
            low, high = normalised_heads(
                low, high, head, at, qkv, row64, 0, q_norm, eps, NORM=NORM, COUNT=Q_HEADS, HEAD_DIM=HEAD_DIM
            )
        if rotary is not None:
            low, high = rotated(low, high, cos, sin)
        if temperature is not None:
            factor = tl.load(temperature + position, mask=live, other=0.0)
            low, high = low * factor, high * factor
        put(out, row64 * out_stride + head * HEAD_DIM + at, low, high, mask, HALF=HALF)
    else:
        place = block * PAGE + (head * BLOCK_SIZE + position % BLOCK_SIZE) * HEAD_DIM + at
        if is_v:
            if VALUE_DIM != HEAD_DIM:
                in_value = (head < KV_HEADS) & (at < VALUE_DIM // 2)
                columns = (Q_HEADS + KV_HEADS) * HEAD_DIM + head * VALUE_DIM + at
                low, high = read_halves(qkv, row64, columns, in_value, HALF=VALUE_DIM // 2)
                place = block * PAGE + (head * BLOCK_SIZE + position % BLOCK_SIZE) * VALUE_DIM + at
                mask = in_value & live
            if NORM_VALUES:
                low, high = normalised(
                    low, high, mean_square_of_each(low, high, HALF=HALF), None, at, at < HALF, eps, HALF=HALF
                )
            put(values, place, low, high, mask, HALF=VALUE_DIM // 2)
        else:
            if NORM != NO_NORM:
                low, high = normalised_heads(
                    low, high, head, at, qkv, row64, Q_HEADS, k_norm, eps,
                    NORM=NORM, COUNT=KV_HEADS, HEAD_DIM=HEAD_DIM,
                )  # fmt: skip
            if rotary is not None:
                low, high = rotated(low, high, cos, sin)
            put(keys, place, low, high, mask, HALF=HALF)


def rope_and_cache(  # limits: exempt (kernel: as the op)
    qkv: Source,
    *,
    op: RopeAndCache,
    tables: StepTables,
    rotary: Tensor | None,
    temperature: Tensor | None = None,
    q_norm: Tensor | None,
    k_norm: Tensor | None,
    cache: LayerCache,
    out: Tensor,
    max_tokens: int,
) -> Launch:
    """Rotated queries to `out` [rows, stride]; keys and values, if there are any, to the layer's cache; all
    rounded to their dtypes. rotary: float32 [max_len, head_dim], by position the cosines, then the sines, of
    its head_dim / 2 angles; temperature: float32 [max_len]."""
    assert isinstance(qkv, Tensor) or qkv.out is None, "rope_and_cache: its qkv is read elsewhere, too"
    shape = op.shape
    heads = min(HEADS, power_of_two(shape.heads), DIMENSIONS // power_of_two(shape.head_dim))
    programs = -(-shape.heads // heads) + 2 * op.keys * -(-shape.kv_heads // heads)
    return Launch(
        kernel=rope_and_cache_kernel,
        grid=(max_tokens, programs),
        arguments={
            "qkv": source_operand(qkv),
            "positions": tables.positions,
            "token_chunk": tables.token_chunk,
            "block_tables": tables.block_tables[cache.group],
            "block_tables_stride": tables.block_tables.stride(1),
            "counts": tables.counts,
            "rotary": rotary,
            "temperature": temperature,
            "q_norm": q_norm,
            "k_norm": k_norm,
            "eps": op.norm.eps if op.norm else 0.0,
            "keys": cache.keys,
            "values": cache.values,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "EAGER": max_tokens <= EAGER_ROWS,
            "NORM": norm_of(op.norm),
            "NORM_VALUES": op.norm is not None and op.norm.values,
            "Q_HEADS": shape.heads,
            "KV_HEADS": shape.kv_heads,
            "HEAD_DIM": shape.head_dim,
            "VALUE_DIM": shape.v_dim,
            "PAGE": cache.page_stride,
            "BLOCK_SIZE": cache.block_size,
            "HEADS": heads,
            "BLOCK": power_of_two(shape.head_dim // 2),
        },
        options=eager_options(max_tokens),
    )
