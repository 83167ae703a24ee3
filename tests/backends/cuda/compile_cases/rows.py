"""Kernels of a program a row: norms, rotary embedding, look-up and selection of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from firelane.backends.cuda.device.pinned_state import PinnedState
from firelane.backends.cuda.device.shapes import segments
from firelane.backends.cuda.kernels.embed import embed
from firelane.backends.cuda.kernels.norms.norm import rms_norm
from firelane.backends.cuda.kernels.rope import rope_and_cache
from firelane.backends.cuda.kernels.rows.cast import cast, select_rows
from firelane.backends.cuda.kernels.rows.features import read_features, tell_features
from firelane.backends.cuda.kernels.rows.prepare_inputs import prepare_inputs
from firelane.backends.cuda.kernels.rows.store_hidden import store_hidden
from firelane.backends.cuda.step.kv_pages import layer_cache
from firelane.backends.cuda.step.split_k import Source, SplitKSum
from firelane.backends.cuda.step.tables import NUM_COUNTS, ROWS, TOKENS, StepTables
from firelane.backends.cuda.weights.matrices import CodedMatrix, Escapes, Matrix, PlainMatrix
from firelane.contract import CAUSAL, StepLimits
from firelane.program.cache import CacheLayer
from firelane.program.ops import HeadNorm, HeadShape, RopeAndCache, Rotary, Temperature
from firelane.program.values import DType, Value, Weight
from firelane.program.values import Rows as RowKind
from tests.backends.cuda.compile_driver import WIDE_LOADS, Case, untouched
from tests.backends.cuda.host_device import HostDevice

HIDDEN, VOCAB = 4096, 128256
HEADS = HeadShape(heads=32, kv_heads=8, head_dim=128)
LIMITS = StepLimits(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    max_output_rows=288,
    max_model_len=8192,
    block_size=64,
    num_blocks=1000,
)
F32, I32 = torch.float32, torch.int32


def cases() -> Iterator[Case]:
    tables = StepTables.allocate(LIMITS, tile_tokens=16, device=HostDevice())
    yield from _begin(tables)
    yield from _embed(tables)
    yield from _norm()
    yield from _rope(tables)
    yield from _select(tables)
    yield from _features(tables)


def split_k(width: int, rows: int, *, count: int = 3, bias: bool = False, whole: bool = True) -> SplitKSum:
    residual = untouched(rows, width, dtype=F32) if whole else None
    return SplitKSum(
        parts=untouched(count, rows, width, dtype=F32),
        width=width,
        bias=untouched(width, dtype=F32) if bias else None,
        residual=residual,
        out=residual,
    )


def norm(
    x: Source, width: int, rows: int, dtype: torch.dtype = torch.bfloat16, *, into_stream: bool = False
) -> Case:
    weight, out = untouched(width, dtype=F32), untouched(rows, width, dtype=F32 if into_stream else dtype)
    launch = rms_norm(
        x,
        weight,
        out,
        residual=untouched(rows, width, dtype=F32) if into_stream else None,
        scalar=untouched(1, dtype=F32) if into_stream else None,
        width=width,
        eps=1e-5,
        counts=untouched(NUM_COUNTS, dtype=I32),
        count=TOKENS,
        max_rows=rows,
    )
    what = f"{x.count} parts" if isinstance(x, SplitKSum) else "final"
    what += ", into the stream" if into_stream else ""
    return Case(name=f"rms_norm {rows} x {width}, {what}", launch=launch, needs=(WIDE_LOADS,))


def rope(qkv: Source, tables: StepTables, op: RopeAndCache, rows: int) -> Case:
    heads = op.shape
    layer = CacheLayer(layer=0, shape=heads, dtype=DType.BF16, span=CAUSAL)
    pool = untouched(LIMITS.num_blocks, (heads.k_width + heads.v_width) * LIMITS.block_size)
    norm = op.norm or HeadNorm(q=None, k=None, eps=0)
    launch = rope_and_cache(
        qkv,
        op=op,
        tables=tables,
        rotary=untouched(LIMITS.max_model_len, heads.head_dim, dtype=F32) if op.rotary else None,
        temperature=untouched(LIMITS.max_model_len, dtype=F32) if op.temperature else None,
        q_norm=untouched(*norm.q.shape, dtype=F32) if norm.q else None,
        k_norm=untouched(*norm.k.shape, dtype=F32) if norm.k else None,
        cache=layer_cache(pool, layer, 0, LIMITS.block_size, 0),
        out=untouched(rows, op.out.width),
        max_tokens=rows,
    )
    what = f"{qkv.count} parts" if isinstance(qkv, SplitKSum) else "final"
    return Case(
        name=f"rope {rows} rows, {heads.heads}/{heads.kv_heads}x{heads.head_dim}, {what}, {_options(op)}",
        launch=launch,
        needs=(WIDE_LOADS,),
    )


def _options(op: RopeAndCache) -> str:
    norm = op.norm
    names = {
        "whole norms": norm is not None and norm.whole,
        "norms": norm is not None and not norm.whole,
        "of values": norm is not None and norm.values,
        "temperature": op.temperature is not None,
        "no angles": op.rotary is None,
    }
    return " ".join(name for name, has in names.items() if has) or "plain"


def rope_op(heads: HeadShape = HEADS, norm: HeadNorm | None = None, **options: Any) -> RopeAndCache:
    """options: of the op, in place of angles alone."""
    return RopeAndCache(
        qkv=Value("qkv", RowKind.TOKEN, heads.q_width + heads.k_width + heads.v_width, DType.F32),
        layer=0,
        shape=heads,
        norm=norm,
        out=Value("out", RowKind.TOKEN, heads.q_width, DType.BF16),
        **{"rotary": Rotary(inverse_frequencies=(1.0,) * (heads.head_dim // 2)), **options},
    )


def head_norm(heads: HeadShape = HEADS, *, whole: bool = False, values: bool = False) -> HeadNorm:
    widths = (heads.q_width, heads.k_width) if whole else (heads.head_dim,) * 2
    q, k = (Weight.stored(name, (n,), DType.F32) for name, n in zip("qk", widths, strict=True))
    return HeadNorm(q=q, k=k, eps=1e-5, whole=whole, values=values)


def _begin(tables: StepTables) -> Iterator[Case]:
    state = PinnedState.allocate(LIMITS, 100, HostDevice())
    for chunks in (1, LIMITS.max_num_seqs):
        launch = prepare_inputs(
            tables,
            state,
            block_size=LIMITS.block_size,
            tile_tokens=16,
            max_chunks=chunks,
            max_rows=chunks,
        )
        yield Case(name=f"prepare_inputs {chunks} chunks", launch=launch)


def _embed(tables: StepTables) -> Iterator[Case]:
    for name, table in (("plain", _plain()), ("coded", _coded())):
        out = untouched(256, HIDDEN, dtype=F32)
        yield Case(name=f"embed {name}", launch=embed(table, tables, out, max_tokens=256))
        launch = embed(table, tables, out, scale=62.0, max_tokens=256)
        yield Case(name=f"embed {name}, scaled", launch=launch)


def _norm() -> Iterator[Case]:
    for width in (1024, 4096, 8192, 16384):
        parts = segments(width, width) + 1
        yield norm(split_k(width, 1, count=parts, bias=True), width, 1)
    yield norm(split_k(HIDDEN, 256), HIDDEN, 256)
    yield norm(untouched(8192, HIDDEN, dtype=F32), HIDDEN, 8192)
    for width in (3584, 5376):
        alone = replace(split_k(width, 1, count=5, whole=False), scale=0.22)
        yield norm(alone, width, 1, into_stream=True)
        yield norm(untouched(8192, width, dtype=F32), width, 8192, into_stream=True)


def _rope(tables: StepTables) -> Iterator[Case]:
    yield from _rope_of(tables, rope_op())
    yield from _rope_of(tables, rope_op(norm=head_norm()), bias=True)
    olmo = HeadShape(heads=40, kv_heads=8, head_dim=128)
    yield from _rope_of(tables, rope_op(olmo, head_norm(olmo, whole=True)))
    for head_dim in (256, 512):
        gemma = HeadShape(heads=16, kv_heads=4, head_dim=head_dim)
        yield from _rope_of(tables, rope_op(gemma, head_norm(gemma, values=True)))
    yield from _rope_of(tables, rope_op(HeadShape(heads=32, kv_heads=32, head_dim=96)))
    yield from _rope_of(tables, rope_op(HeadShape(heads=64, kv_heads=8, head_dim=192, value_dim=128)))
    heated = Temperature(growth=0.1, period=8192)
    yield from _rope_of(tables, rope_op(rotary=None, temperature=heated))


def _rope_of(tables: StepTables, op: RopeAndCache, *, bias: bool = False) -> Iterator[Case]:
    """Yield a rotation of one row, whose product comes in parts, and one of many rows."""
    width = op.qkv.width
    yield rope(split_k(width, 1, bias=bias, whole=False), tables, op, 1)
    yield rope(untouched(8192, width, dtype=F32), tables, op, 8192)


def _select(tables: StepTables) -> Iterator[Case]:
    x = replace(split_k(HIDDEN, 256), out=None)
    out = untouched(256, HIDDEN, dtype=F32)
    for name, source in (("split_k", x), ("final", untouched(256, HIDDEN, dtype=F32))):
        launch = select_rows(source, tables, out, width=HIDDEN, max_rows=256)
        yield Case(name=f"select_rows {name}", launch=launch, needs=(WIDE_LOADS,))
    hidden = untouched(2, 256, HIDDEN, dtype=F32)
    yield Case(
        name="store_hidden",
        launch=store_hidden(untouched(256, HIDDEN), tables, hidden, width=HIDDEN, max_rows=256),
    )
    for name, source in (("split_k", split_k(HIDDEN, 256)), ("final", untouched(256, HIDDEN, dtype=F32))):
        out = untouched(256, HIDDEN)
        launch = cast(source, out, width=HIDDEN, counts=tables.counts, count=ROWS, max_rows=256)
        yield Case(name=f"cast {name}", launch=launch, needs=(WIDE_LOADS,))


def _features(tables: StepTables) -> Iterator[Case]:
    """Yield a stream that is told, in parts or whole, a hidden state, and three streams that are read."""
    told = untouched(2, 8192, 3 * HIDDEN, dtype=F32)
    sources = {"split_k": split_k(HIDDEN, 256), "final": untouched(8192, HIDDEN, dtype=F32)}
    for name, source in (*sources.items(), ("hidden", untouched(8192, HIDDEN))):
        launch = tell_features(source, tables, told[..., HIDDEN : 2 * HIDDEN], max_rows=256)
        yield Case(name=f"tell_features {name}", launch=launch)
    out = untouched(8192, 3 * HIDDEN)
    yield Case(name="read_features", launch=read_features(told, tables, out, max_rows=8192))


def _escapes() -> Escapes:
    return Escapes(
        starts=untouched(VOCAB // 64 + 1, dtype=I32), where=untouched(9, dtype=I32), values=untouched(9)
    )


def _plain() -> Matrix:
    return PlainMatrix(data=untouched(VOCAB, HIDDEN), rows=VOCAB, k=HIDDEN, escapes=_escapes())


def _coded() -> Matrix:
    def some(*shape: int) -> Tensor:
        return untouched(*shape, dtype=torch.uint8)

    return CodedMatrix(
        low=some(VOCAB, HIDDEN),
        codes=some(VOCAB, HIDDEN // 2),
        bases=some(VOCAB // 64),
        rows=VOCAB,
        k=HIDDEN,
        escapes=_escapes(),
    )
