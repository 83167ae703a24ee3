"""LatentCache and HeadLinear in Triton's interpreter: against their references, in awkward sizes, and the
same bits in every company."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from matrices_harness import coded_matrix, plain_matrix, random_bits, true_values, uncoded_matrix
from products_harness import FORMS, Rows, assert_near, output, random_rows

from firelane.backends.cuda.device.linear_config import LinearConfig
from firelane.backends.cuda.kernels.attention.latent import latent_cache
from firelane.backends.cuda.kernels.matmul.head_linear import head_linear
from firelane.backends.cuda.step import tables as t
from firelane.backends.cuda.step.kv_pages import LayerCache, layer_cache
from firelane.backends.cuda.step.tables import ROWS
from firelane.backends.cuda.weights.matrices import Matrix
from firelane.contract import CAUSAL
from firelane.program.cache import CacheLayer
from firelane.program.ops import HeadShape, LatentCache, Rotary, Temperature
from firelane.program.reference_step import ReferenceCache, ReferenceStep, rounded
from firelane.program.values import DType, Value, Weight
from firelane.program.values import Rows as RowKind
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.rows_harness import (
    assert_untouched,
    filled,
    limits,
    poisoned_tables,
    random_split_k,
    rows_of,
    sum_of,
)

SMALL = LinearConfig(row_tile=16)
TOKENS, START, MAX_LEN, BLOCK = 5, 14, 64, 16
BOUNDS = {DType.F32: 2e-6, DType.BF16: 2.0**-8}


def op_of(*, rank: int = 20, rope: int = 6, nope: int = 10, heads: int = 3, **options) -> LatentCache:
    width, dtype = heads * (nope + rope), options.pop("dtype", DType.F32)
    return LatentCache(
        q=Value("q", RowKind.TOKEN, width, DType.F32),
        latent=Value("latent", RowKind.TOKEN, rank + rope, DType.F32),
        layer=0,
        heads=heads,
        norm=Weight.stored("norm", (rank,), DType.F32),
        eps=1e-6,
        out=Value("out", RowKind.TOKEN, width, dtype),
        **{"rotary": Rotary(inverse_frequencies=tuple(0.5**i for i in range(rope // 2))), **options},
    )


OPS = {
    "turned": op_of(),
    "bf16": op_of(rank=36, heads=11, dtype=DType.BF16),
    "warm": op_of(temperature=Temperature(growth=0.4, period=8)),
    "still": op_of(rotary=None),
    "no position": op_of(rope=0, rotary=None),
    "position alone": op_of(nope=0),
}


def run_cache(op: LatentCache, q: np.ndarray, latent, norm: np.ndarray) -> tuple[torch.Tensor, LayerCache]:
    """One chunk of slot 0 from START on, whose blocks are 2, 0, …"""
    tables = poisoned_tables(limits(max_model_len=MAX_LEN, block_size=BLOCK))
    rows = len(q)
    tables.counts[t.TOKENS] = rows
    tables.token_chunk[:rows] = 0
    tables.positions[:rows] = torch.arange(START, START + rows)
    tables.block_tables[0, 0, :2] = torch.tensor([2, 0])
    width = op.latent.width
    shape = HeadShape(heads=op.heads, kv_heads=1, head_dim=width, value_dim=op.rank, shared=True)
    dtype = torch.bfloat16 if op.out.dtype is DType.BF16 else torch.float32
    layer = CacheLayer(layer=0, shape=shape, dtype=op.out.dtype, span=CAUSAL)
    pool = poison(torch.empty(3, (width + 8) * BLOCK, dtype=dtype))
    cache = layer_cache(pool, layer, 8 * dtype.itemsize, BLOCK, 0)
    out = rows_of(rows + 2, op.out.width, dtype)

    def table(of: Rotary | Temperature | None) -> torch.Tensor | None:
        return None if of is None else torch.from_numpy(of.table(MAX_LEN))

    for launch in latent_cache(
        filled(q, rows + 2),
        latent,
        op=op,
        tables=tables,
        rotary=table(op.rotary),
        temperature=table(op.temperature),
        norm=torch.from_numpy(norm),
        cache=cache,
        out=out,
        max_tokens=rows + 2,
    ):
        launch.run()
    assert_untouched(out, rows, op.out.width)
    return out, cache


def reference(op: LatentCache, q: np.ndarray, latent: np.ndarray, norm: np.ndarray) -> ReferenceStep:
    keys = np.full((1, MAX_LEN, 1, op.latent.width), np.nan, np.float32)
    step = ReferenceStep(
        token_ids=np.zeros(len(q), np.int64),
        slots=np.zeros(len(q), np.int64),
        positions=np.arange(START, START + len(q)),
        row_token=np.zeros(0, np.int64),
        weights={"norm": norm},
        cache=ReferenceCache(keys={0: keys}, values={0: keys}, dtypes={0: op.out.dtype}),
        values={op.q: q, op.latent: latent},
    )
    op.reference(step)
    return step


def operands(op: LatentCache) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, latent and norm."""
    rng = np.random.default_rng(3)
    shapes = (TOKENS, op.q.width), (TOKENS, op.latent.width), (op.rank,)
    q, latent, norm = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return q, latent, norm


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_latents_and_turned_queries(op: LatentCache) -> None:
    q, latent, norm = operands(op)
    out, cache = run_cache(op, q, filled(latent, TOKENS + 2), norm)
    step, bound = reference(op, q, latent, norm), BOUNDS[op.out.dtype]
    wanted = rounded(step.read(op.out), op.out.dtype)
    assert np.abs(out[:TOKENS, : op.out.width].float().numpy() - wanted).max() <= bound * np.abs(wanted).max()
    wanted = step.cache.keys[0][0, START : START + TOKENS, 0]
    at = [(2, 0, 14), (2, 0, 15), (0, 0, 0), (0, 0, 1), (0, 0, 2)]
    found = torch.stack([cache.keys[place] for place in at]).float().numpy()
    assert np.abs(found - wanted).max() <= bound * np.abs(wanted).max()
    assert (~cache.keys.isnan()).sum() == TOKENS * op.latent.width, "wrote elsewhere"
    assert cache.values.data_ptr() == cache.keys.data_ptr()


def test_a_latent_in_parts_is_added_up_on_the_way() -> None:
    op = OPS["turned"]
    q, _, norm = operands(op)
    parts = random_split_k(
        np.random.default_rng(4), TOKENS, op.latent.width, max_rows=TOKENS + 2, whole=False
    )
    total = filled(sum_of(parts, TOKENS), TOKENS + 2)
    for a, b in zip(run_cache(op, q, parts, norm), run_cache(op, q, total, norm), strict=True):
        left, right = (x if isinstance(x, torch.Tensor) else x.keys for x in (a, b))
        assert torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))


HEADS, KEEP = 3, 6


def bits_of_heads(b: int, a: int) -> list[np.ndarray]:
    return [random_bits(b, a, seed=b + head) for head in range(HEADS)]


def run_heads(matrix: Matrix, rows: Rows, b: int, config: LinearConfig = SMALL) -> np.ndarray:
    """[count, HEADS, b + KEEP]. Nothing else is written."""
    width = HEADS * (b + KEEP)
    out = output(rows.max_rows, width, rows.x.dtype)
    head_linear(
        matrix,
        rows.x,
        out,
        heads=HEADS,
        keep=KEEP,
        counts=rows.counts,
        count=ROWS,
        max_rows=rows.max_rows,
        config=config,
    ).run()
    assert out[rows.count :].isnan().all()
    assert out[:, width:].isnan().all()
    return out[: rows.count, :width].float().numpy().reshape(rows.count, HEADS, b + KEEP)


@pytest.mark.parametrize("form", [*FORMS, "float32"])
@pytest.mark.parametrize(("b", "a", "count"), [(72, 80, 1), (130, 128, 19)])
def test_heads_products(form: str, b: int, a: int, count: int) -> None:
    parts, is_f32 = bits_of_heads(b, a), form == "float32"
    rows = random_rows(
        count, HEADS * (a + KEEP), max_rows=count + 3, dtype=torch.float32 if is_f32 else torch.bfloat16
    )
    matrix = uncoded_matrix([true_values(p) for p in parts]) if is_f32 else FORMS[form](parts)
    config = replace(SMALL, k_tile=32, stages=2) if is_f32 else SMALL
    found = run_heads(matrix, rows, b, config)
    x = rows.values.reshape(count, HEADS, a + KEEP)
    wanted = np.stack([x[:, head, :a] @ true_values(parts[head]).T for head in range(HEADS)], axis=1)
    assert_near(found[..., :b], wanted, *(() if is_f32 else (2.0**-8,)))
    np.testing.assert_array_equal(found[..., b:], x[..., a:])


def test_heads_products_are_the_same_bits_in_any_config_form_and_company() -> None:
    parts, rows = bits_of_heads(100, 256), random_rows(19, HEADS * (256 + KEEP), max_rows=33)
    wanted = run_heads(plain_matrix(parts), rows, 100)
    wide = LinearConfig(row_tile=64, features=128, k_tile=64)
    np.testing.assert_array_equal(run_heads(plain_matrix(parts), rows, 100, wide), wanted)
    np.testing.assert_array_equal(run_heads(coded_matrix(parts), rows, 100), wanted)
    alone = random_rows(1, HEADS * (256 + KEEP))
    np.testing.assert_array_equal(run_heads(coded_matrix(parts), alone, 100), wanted[:1])
