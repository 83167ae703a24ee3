"""Attention: decoded in splits, and in tiles of queries."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from firelane.backends.cuda.kernels.attention.attention_merge import merge_splits
from firelane.backends.cuda.kernels.attention.attention_split import attend_splits
from firelane.backends.cuda.kernels.attention.attention_tiles import attend_tiles, tile_tokens
from firelane.backends.cuda.kernels.attention.query_tile import split_programs
from firelane.backends.cuda.step.kv_pages import layer_cache
from firelane.backends.cuda.step.tables import CHUNK_COLUMNS, MAX_KV_SPLITS, NUM_COUNTS, Staged, StepTables
from firelane.contract import CAUSAL, Chunk, Span, Window
from firelane.program.cache import CacheLayer
from firelane.program.ops import Attention, HeadShape
from firelane.program.values import DType, Rows, Value
from tests.backends.cuda.compile_driver import ASYNC_COPY, WGMMA, WIDE_LOADS, Case, untouched

CHUNKS, TOKENS, BLOCKS, SMS = 200, 2048, 1000, 100
TENSOR_CORES = (WGMMA, ASYNC_COPY, WIDE_LOADS)
LLAMA_8B = (32, 8, 128)


def cases() -> Iterator[Case]:
    yield from both("8B", LLAMA_8B)
    yield from both("8B, blocks of 16", LLAMA_8B, block_size=16)
    yield from both("8B, window", LLAMA_8B, span=Window(4096), block_size=128)
    yield from both("8B, chunks", LLAMA_8B, span=Chunk(8192))
    yield from both("70B", (64, 8, 128))
    yield from both("1B", (32, 8, 64))
    yield from both("one head a group", (32, 32, 128))
    yield from both("groups of 7", (28, 4, 128))
    yield from both("heads of 80", (32, 32, 80))
    yield from both("heads of 256", (16, 8, 256))
    yield from both("Phi-3", (32, 32, 96))
    yield from both("Gemma 2", (16, 8, 256), span=Window(4096), softcap=50.0)
    yield from both("Gemma 4", (32, 4, 512))
    yield from both("gpt-oss", (64, 8, 64), span=Window(128), sinks=True)
    yield from both("MiMo-V2-Flash", (64, 4, 192), value_dim=128, shared=False)
    yield from both(
        "MiMo-V2-Flash, window", (64, 8, 192), value_dim=128, shared=False, span=Window(129), sinks=True
    )
    yield from both("DeepSeek V3", (128, 1, 576), value_dim=512)
    yield from both("DeepSeek V2-Lite", (16, 1, 576), value_dim=512)
    yield from both("Mistral Small 4", (32, 1, 320), value_dim=256)
    yield from both("float32", LLAMA_8B, dtype=DType.F32)
    yield from both("float32, heads of 256", (16, 8, 256), dtype=DType.F32)


def both(
    name: str,
    shape: tuple[int, int, int],
    *,
    dtype: DType = DType.BF16,
    span: Span = CAUSAL,
    block_size: int = 64,
    softcap: float = 0.0,
    sinks: bool = False,
    value_dim: int = 0,
    shared: bool = True,
) -> Iterator[Case]:
    """value_dim: of values that are another width than their keys, or a part of them (`shared`)."""
    heads, kv_heads, head_dim = shape
    grouped = HeadShape(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        value_dim=value_dim,
        shared=shared and value_dim > 0,
    )
    torch_dtype = torch.float32 if dtype is DType.F32 else torch.bfloat16
    is_f32 = dtype is DType.F32  # only has to work: what it takes differs much between Triton's versions
    needs = () if is_f32 else TENSOR_CORES
    widths = {"q": grouped.q_width, "out": grouped.out_width}
    q, out = (Value(name=n, rows=Rows.TOKEN, width=w, dtype=dtype) for n, w in widths.items())
    scale = head_dim**-0.5
    op = Attention(q=q, layer=0, shape=grouped, scale=scale, span=span, softcap=softcap, out=out)
    tables = step_tables(tile_tokens(op.shape.group), 65536 // block_size)
    layer = CacheLayer(layer=0, shape=grouped, dtype=dtype, span=span)
    pool = untouched(BLOCKS, 2 * grouped.cached_width * block_size, dtype=torch_dtype)
    cache = layer_cache(pool, layer, layer.bytes_per_token, block_size, 0)
    rows, result = (untouched(TOKENS, width, dtype=torch_dtype) for width in widths.values())
    partial = untouched(MAX_KV_SPLITS, heads, grouped.v_dim, dtype=torch.float32)
    stats = untouched(MAX_KV_SPLITS, heads, 2, dtype=torch.float32)
    programs = split_programs(op, SMS)
    splits = attend_splits(rows, cache, tables, op=op, partial=partial, stats=stats, programs=programs)
    more = {"op": op, "sinks": untouched(heads, dtype=torch.float32) if sinks else None}
    merge = merge_splits(tables, partial=partial, stats=stats, out=result, max_chunks=CHUNKS, **more)
    tokens = tile_tokens(op.shape.group)
    tiles = attend_tiles(rows, cache, tables, result, tokens=tokens, max_tiles=len(tables.tiles), **more)
    yield Case(name=f"attend_splits {name}", launch=splits, needs=needs, may_spill=is_f32)
    yield Case(name=f"merge_splits {name}", launch=merge, needs=(ASYNC_COPY,))
    yield Case(name=f"attend_tiles {name}", launch=tiles, needs=needs, may_spill=is_f32)


def step_tables(per_tile: int, blocks_per_seq: int) -> StepTables:
    def table(*shape: int) -> torch.Tensor:
        return untouched(*shape, dtype=torch.int32)

    counts, chunks, rows = table(NUM_COUNTS), table(CHUNKS, CHUNK_COLUMNS), table(CHUNKS, 4)
    return StepTables(
        staged=(Staged(counts=counts, chunks=chunks, rows=rows),),
        counts=counts,
        chunks=chunks,
        rows=rows,
        token_ids=table(TOKENS),
        positions=table(TOKENS),
        token_chunk=table(TOKENS),
        block_tables=table(1, CHUNKS, blocks_per_seq),
        spans=table(1),
        kv_splits=table(MAX_KV_SPLITS, 2),
        tiles=table(-(-TOKENS // per_tile) + CHUNKS, 2),
    )
