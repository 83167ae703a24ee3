"""LatentCache: a token's latent, normalised, and its key for the position, rotated, to the cache; and the
columns of queries that are for the position, rotated."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false, reportGeneralTypeIssues=false
# (what a triton.jit function takes are blocks and pointers of the device's language, not Python's types)

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from firelane.backends.cuda.device.launch import Launch
from firelane.backends.cuda.kernels.norms.head_norm import read_halves
from firelane.backends.cuda.kernels.norms.norm import warps_of
from firelane.backends.cuda.kernels.rope import put, rotated
from firelane.backends.cuda.kernels.sums import power_of_two, read, source_operand
from firelane.backends.cuda.step.kv_pages import LayerCache
from firelane.backends.cuda.step.split_k import Source
from firelane.backends.cuda.step.tables import TOKENS, StepTables
from firelane.program.ops import LatentCache

HEADS = 8  # of one program


@triton.jit
def cache_latent_kernel(  # limits: exempt (kernel: the op's operands, tables and a cache)
    latent,
    positions,
    token_chunk,
    block_tables,
    block_tables_stride,
    counts,
    rotary,
    norm,
    eps,
    keys,
    COUNT: tl.constexpr,
    RANK: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """A program a token. Sums are in an order that the rank alone decides, as a norm's."""
    HALF: tl.constexpr = ROPE_DIM // 2
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    position = tl.load(positions + row)
    chunk = tl.load(token_chunk + row).to(tl.int64)
    block = tl.load(block_tables + chunk * block_tables_stride + position // BLOCK_SIZE).to(tl.int64)
    place = keys + block * PAGE + position % BLOCK_SIZE * (RANK + ROPE_DIM)
    row64 = row.to(tl.int64)
    columns = tl.arange(0, BLOCK // 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    mask = columns < RANK
    values = read(latent, row64, columns, mask)
    mean_square = tl.sum(tl.sum(values * values, axis=1), axis=0) / RANK
    values *= tl.rsqrt(mean_square + eps) * tl.load(norm + columns, mask=mask, other=0.0).to(tl.float32)
    tl.store(place + columns, values.to(keys.dtype.element_ty), mask=mask)
    if ROPE_DIM:
        at = tl.arange(0, HALF_BLOCK)
        inside = at < HALF
        low, high = read_halves(latent, row64, RANK + at, inside, HALF=HALF)
        if rotary is not None:
            angles = rotary + position.to(tl.int64) * ROPE_DIM + at
            cos, sin = tl.load(angles, mask=inside, other=0.0), tl.load(angles + HALF, mask=inside, other=0.0)
            low, high = rotated(low, high, cos, sin)
        put(place, RANK + at, low, high, inside, HALF=HALF)


@triton.jit
def turn_queries_kernel(  # limits: exempt (kernel: pointers, strides and sizes)
    q,
    q_stride,
    positions,
    counts,
    rotary,
    temperature,
    out,
    out_stride,
    COUNT: tl.constexpr,
    Q_HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK: tl.constexpr,
    HALF_BLOCK: tl.constexpr,
):
    """A program a token and HEADS heads."""
    HALF: tl.constexpr = ROPE_DIM // 2
    row = tl.program_id(0)
    if row >= tl.load(counts + COUNT):
        return
    position = tl.load(positions + row)
    factor = 1.0
    if temperature is not None:
        factor = tl.load(temperature + position)
    q += row.to(tl.int64) * q_stride
    out += row.to(tl.int64) * out_stride
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    begin = head * (NOPE + ROPE_DIM)
    if NOPE:
        column = tl.arange(0, BLOCK)[None, :]
        mask = (head < Q_HEADS) & (column < NOPE)
        still = tl.load(q + begin + column, mask=mask, other=0.0) * factor
        tl.store(out + begin + column, still.to(out.dtype.element_ty), mask=mask)
    if ROPE_DIM:
        at = tl.arange(0, HALF_BLOCK)[None, :]
        mask = (head < Q_HEADS) & (at < HALF)
        places = begin + NOPE + at
        low = tl.load(q + places, mask=mask, other=0.0)
        high = tl.load(q + places + HALF, mask=mask, other=0.0)
        if rotary is not None:
            angles = rotary + position.to(tl.int64) * ROPE_DIM + at
            cos = tl.load(angles, mask=at < HALF, other=0.0)
            sin = tl.load(angles + HALF, mask=at < HALF, other=0.0)
            low, high = rotated(low, high, cos, sin)
        put(out, places, low * factor, high * factor, mask, HALF=HALF)


def latent_cache(
    q: Tensor,
    latent: Source,
    *,
    op: LatentCache,
    tables: StepTables,
    rotary: Tensor | None,
    temperature: Tensor | None,
    norm: Tensor,
    cache: LayerCache,
    out: Tensor,
    max_tokens: int,
) -> list[Launch]:  # limits: exempt (kernel: as the op)
    """q: float32 [rows, stride]; rotary, temperature: as rope_and_cache()'s; norm: float32 [rank]; cache:
    of the layer, whose keys hold its values."""
    assert isinstance(latent, Tensor) or latent.out is None, "latent_cache: its latent is read elsewhere, too"
    half = power_of_two(max(1, op.rope_dim // 2))
    block = max(4, power_of_two(op.rank))
    nope = op.q.width // op.heads - op.rope_dim
    cached = Launch(
        kernel=cache_latent_kernel,
        grid=(max_tokens,),
        arguments={
            "latent": source_operand(latent),
            "positions": tables.positions,
            "token_chunk": tables.token_chunk,
            "block_tables": tables.block_tables[cache.group],
            "block_tables_stride": tables.block_tables.stride(1),
            "counts": tables.counts,
            "rotary": rotary,
            "norm": norm,
            "eps": op.eps,
            "keys": cache.keys,
            "COUNT": TOKENS,
            "RANK": op.rank,
            "ROPE_DIM": op.rope_dim,
            "PAGE": cache.page_stride,
            "BLOCK_SIZE": cache.block_size,
            "BLOCK": block,
            "HALF_BLOCK": half,
        },
        warps=warps_of(block),
    )
    heads = min(HEADS, power_of_two(op.heads))
    turned = Launch(
        kernel=turn_queries_kernel,
        grid=(max_tokens, -(-op.heads // heads)),
        arguments={
            "q": q,
            "q_stride": q.stride(0),
            "positions": tables.positions,
            "counts": tables.counts,
            "rotary": rotary,
            "temperature": temperature,
            "out": out,
            "out_stride": out.stride(0),
            "COUNT": TOKENS,
            "Q_HEADS": op.heads,
            "NOPE": nope,
            "ROPE_DIM": op.rope_dim,
            "HEADS": heads,
            "BLOCK": power_of_two(max(1, nope)),
            "HALF_BLOCK": half,
        },
    )
    return [cached, turned]
