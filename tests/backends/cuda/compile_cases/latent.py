"""Latent attention but for its scores, at the shapes of DeepSeek V3: caches, and products by head."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from firelane.backends.cuda.device.linear_config import ProductShape, by_rule
from firelane.backends.cuda.kernels.attention.latent import latent_cache
from firelane.backends.cuda.kernels.matmul.head_linear import head_linear
from firelane.backends.cuda.kernels.matmul.tiling import fitted
from firelane.backends.cuda.step.kv_pages import layer_cache
from firelane.backends.cuda.step.split_k import Source
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.contract import CAUSAL
from firelane.program.cache import CacheLayer
from firelane.program.ops import HeadShape, LatentCache, Rotary
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.compile_cases.attention import step_tables
from tests.backends.cuda.compile_cases.linear import coded, plain
from tests.backends.cuda.compile_cases.rows import split_k
from tests.backends.cuda.compile_driver import ASYNC_COPY, ONLY_WGMMA, WGMMA, WIDE_LOADS, Case, untouched

FULL = (WGMMA, ONLY_WGMMA, ASYNC_COPY, WIDE_LOADS)
HEADS, RANK, NOPE, ROPE = 128, 512, 128, 64
F32 = torch.float32


def cases() -> Iterator[Case]:
    for latent, how in (
        (untouched(64, RANK + ROPE, dtype=F32), "whole"),
        (split_k(RANK + ROPE, 64, count=9, whole=False), "in parts"),
    ):
        for launch in caches(latent):
            yield Case(name=f"{launch.name}, {how}", launch=launch, needs=(WIDE_LOADS,))
    for rows in (1, 64, 2048):
        for form in (plain, coded):
            yield products(RANK, NOPE, rows, form, keep=ROPE)
            yield products(NOPE, RANK, rows, form, keep=0)


def caches(latent: Source):
    op = latent_op()
    layer = CacheLayer(
        layer=0,
        shape=HeadShape(heads=HEADS, kv_heads=1, head_dim=RANK + ROPE, value_dim=RANK, shared=True),
        dtype=DType.BF16,
        span=CAUSAL,
    )
    pool = untouched(1000, 64 * (RANK + ROPE))
    return latent_cache(
        untouched(64, op.q.width, dtype=F32),
        latent,
        op=op,
        tables=step_tables(1, 1024),
        rotary=untouched(1000, ROPE, dtype=F32),
        temperature=None,
        norm=untouched(RANK, dtype=F32),
        cache=layer_cache(pool, layer, 0, 64, 0),
        out=untouched(64, op.q.width),
        max_tokens=64,
    )


def latent_op() -> LatentCache:
    width = HEADS * (NOPE + ROPE)
    return LatentCache(
        q=Value("q", Rows.TOKEN, width, DType.F32),
        latent=Value("latent", Rows.TOKEN, RANK + ROPE, DType.F32),
        layer=0,
        heads=HEADS,
        norm=Weight.stored("norm", (RANK,), DType.F32),
        eps=1e-6,
        rotary=Rotary(inverse_frequencies=(1.0,) * (ROPE // 2)),
        out=Value("out", Rows.TOKEN, width, DType.BF16),
    )


def products(b: int, a: int, rows: int, form, *, keep: int) -> Case:
    is_coded = form is coded
    shape = ProductShape(
        rows=b, k=a, gated=False, max_rows=rows, is_coded=is_coded, experts=HEADS, picks=HEADS
    )
    config = fitted(by_rule(shape), is_coded=is_coded, dtype=torch.bfloat16, padded_rows=b)
    launch = head_linear(
        form(HEADS * b, a),
        untouched(rows, HEADS * (a + keep)),
        untouched(rows, HEADS * (b + keep)),
        heads=HEADS,
        keep=keep,
        counts=untouched(NUM_COUNTS, dtype=torch.int32),
        count=TOKENS,
        max_rows=rows,
        config=config,
    )
    name = f"{form.__name__} heads' {b} x {a}, {rows} rows"
    return Case(name=name, launch=launch, needs=FULL)
