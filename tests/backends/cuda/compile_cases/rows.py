"""Kernels of a program a row: norms, rotary embedding, look-up and selection of rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from firelane.backends.cuda.kernels.embed import embed
from firelane.backends.cuda.kernels.norm import rms_norm
from firelane.backends.cuda.kernels.prepare_inputs import prepare_inputs
from firelane.backends.cuda.kernels.rope import rope_and_cache
from firelane.backends.cuda.kernels.select import select_rows, store_hidden
from firelane.backends.cuda.kernels.sums import add_up
from firelane.backends.cuda.kv_pages import layer_cache
from firelane.backends.cuda.matrices import CodedMatrix, Escapes, Matrix, PlainMatrix
from firelane.backends.cuda.pinned_state import PinnedState
from firelane.backends.cuda.shapes import segments
from firelane.backends.cuda.split_k import Source, SplitKSum
from firelane.backends.cuda.tables import NUM_COUNTS, ROWS, TOKENS, StepTables
from firelane.contract import CAUSAL, StepLimits
from firelane.program.cache import CacheLayer
from firelane.program.ops import HeadNorm, HeadShape, RopeAndCache, Rotary
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


def split_k(width: int, rows: int, *, count: int = 3, bias: bool = False, whole: bool = True) -> SplitKSum:
    residual = untouched(rows, width, dtype=F32) if whole else None
    return SplitKSum(
        parts=untouched(count, rows, width, dtype=F32),
        width=width,
        bias=untouched(width, dtype=F32) if bias else None,
        residual=residual,
        out=residual,
    )


def norm(x: Source, width: int, rows: int, dtype: torch.dtype = torch.bfloat16) -> Case:
    weight, out = untouched(width, dtype=F32), untouched(rows, width, dtype=dtype)
    counts = untouched(NUM_COUNTS, dtype=I32)
    launch = rms_norm(x, weight, out, width=width, eps=1e-5, counts=counts, count=TOKENS, max_rows=rows)
    what = f"{x.count} parts" if isinstance(x, SplitKSum) else "final"
    return Case(name=f"rms_norm {rows} x {width}, {what}", launch=launch, needs=(WIDE_LOADS,))


def rope(qkv: Source, tables: StepTables, rows: int, *, norms: bool) -> Case:
    layer = CacheLayer(layer=0, shape=HEADS, dtype=DType.BF16, span=CAUSAL)
    pool = untouched(LIMITS.num_blocks, 2 * HEADS.kv_heads * HEADS.head_dim * LIMITS.block_size)
    op = rope_op(norms=norms)
    launch = rope_and_cache(
        qkv,
        op=op,
        tables=tables,
        rotary=untouched(LIMITS.max_model_len, HEADS.head_dim, dtype=F32),
        q_norm=untouched(HEADS.head_dim, dtype=F32) if norms else None,
        k_norm=untouched(HEADS.head_dim, dtype=F32) if norms else None,
        cache=layer_cache(pool, layer, 0, LIMITS.block_size, 0),
        out=untouched(rows, op.out.width),
        max_tokens=rows,
    )
    what = f"{qkv.count} parts" if isinstance(qkv, SplitKSum) else "final"
    return Case(
        name=f"rope {rows} rows, {what}{', norms' if norms else ''}", launch=launch, needs=(WIDE_LOADS,)
    )


def rope_op(*, norms: bool) -> RopeAndCache:
    d = HEADS.head_dim
    width = (HEADS.heads + 2 * HEADS.kv_heads) * d
    norm = Weight.stored("norm", (d,), DType.BF16)
    return RopeAndCache(
        qkv=Value("qkv", RowKind.TOKEN, width, DType.F32),
        layer=0,
        shape=HEADS,
        rotary=Rotary(inverse_frequencies=(1.0,) * (d // 2)),
        norm=HeadNorm(q=norm, k=norm, eps=1e-5) if norms else None,
        out=Value("out", RowKind.TOKEN, HEADS.heads * d, DType.BF16),
    )


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


def _norm() -> Iterator[Case]:
    for width in (1024, 4096, 8192, 16384):
        parts = segments(width, width) + 1
        yield norm(split_k(width, 1, count=parts, bias=True), width, 1)
    yield norm(split_k(HIDDEN, 256), HIDDEN, 256)
    yield norm(untouched(8192, HIDDEN, dtype=F32), HIDDEN, 8192)


def _rope(tables: StepTables) -> Iterator[Case]:
    width = rope_op(norms=False).qkv.width
    yield rope(split_k(width, 1, whole=False), tables, 1, norms=False)
    yield rope(split_k(width, 1, bias=True, whole=False), tables, 1, norms=True)
    yield rope(untouched(8192, width, dtype=F32), tables, 8192, norms=False)
    yield rope(untouched(8192, width, dtype=F32), tables, 8192, norms=True)


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
    launch = add_up(split_k(HIDDEN, 256), counts=tables.counts, count=ROWS, max_rows=256)
    yield Case(name="add_up", launch=launch, needs=(WIDE_LOADS,))


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
