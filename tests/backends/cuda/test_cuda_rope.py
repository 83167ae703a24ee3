"""Rotation and cache writes against the op's reference, in Triton's interpreter."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.rope import rope_and_cache
from firelane.backends.cuda.step.kv_pages import layer_cache
from firelane.backends.cuda.step.tables import TOKENS
from firelane.contract import CAUSAL, Window
from firelane.program.cache import CacheLayer
from firelane.program.ops import HeadNorm, HeadShape, RopeAndCache, Rotary, Temperature
from firelane.program.reference_step import ReferenceCache, ReferenceStep
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.host_device import poison
from tests.backends.cuda.rows_harness import (
    assert_untouched,
    bits,
    filled,
    limits,
    poisoned_tables,
    random_split_k,
    rows_of,
    sum_of,
)

TORCH = {DType.BF16: torch.bfloat16, DType.F32: torch.float32}
# Without norms the arithmetic is the reference's, operation by operation; a mean has an order of its own.
BOUNDS = {DType.F32: 2e-6, DType.BF16: 2.0**-8}
LAYER, MAX_LEN = 3, 300
GROUP = 1  # of two cache groups
PADDING = 24  # elements per token of a page that are another layer's
# Token rows as (slot, position): parts of three chunks, over the edges of blocks.
CHUNKS = [(2, range(14, 18)), (5, range(299, 300)), (0, range(126, 130))]


@dataclass
class Case:
    op: RopeAndCache
    weights: dict[str, torch.Tensor]
    block_size: int = 16

    @property
    def dtype(self) -> torch.dtype:
        return TORCH[self.op.out.dtype]

    @property
    def width(self) -> int:
        return self.op.qkv.width


def case(heads, *, norm=None, dtype=DType.BF16, block_size=16, keys=True, **options):
    d = heads.head_dim
    rng = np.random.default_rng(d)
    rotary = Rotary(inverse_frequencies=tuple((10000.0 ** -(np.arange(0, d, 2) / d)).tolist()), scale=1.1)
    op = RopeAndCache(
        qkv=Value("qkv", Rows.TOKEN, heads.q_width + keys * (heads.k_width + heads.v_width), DType.F32),
        layer=LAYER,
        shape=heads,
        norm=norm,
        keys=keys,
        out=Value("out", Rows.TOKEN, heads.heads * d, dtype),
        **{"rotary": rotary, **options},
    )
    weights = {
        w.name: torch.from_numpy((1 + 0.2 * rng.standard_normal(w.shape)).astype(np.float32))
        for w in op.weights
    }
    return Case(op, weights, block_size)


def norm_of(heads, *, whole=False, bare=False, values=False):
    widths = {"q": heads.q_width, "k": heads.k_width} if whole else dict.fromkeys("qk", heads.head_dim)
    weights = {n: None if bare else Weight.stored(n, (w,), DType.F32) for n, w in widths.items()}
    return HeadNorm(**weights, eps=1e-5, whole=whole, values=values)


def tables_of(chunks, block_size):
    """Block b of a chunk is one that no other chunk has."""
    sizes = limits(block_size=block_size, spans=(Window(16), CAUSAL))
    tables = poisoned_tables(sizes)
    n = 0
    for i, (_, positions) in enumerate(chunks):
        tables.positions[n : n + len(positions)] = torch.tensor(list(positions), dtype=torch.int32)
        tables.token_chunk[n : n + len(positions)] = i
        used = range(min(positions) // block_size, max(positions) // block_size + 1)
        tables.block_tables[GROUP, i, list(used)] = torch.tensor(
            [3 + 7 * i - j % 3 for j in used], dtype=torch.int32
        )
        n += len(positions)
    tables.counts[TOKENS] = n
    return tables


@dataclass
class Result:
    out: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    tables: object


def run(c, qkv, chunks=CHUNKS, *, max_tokens):
    s, tables = c.op.shape, tables_of(chunks, c.block_size)
    layer = CacheLayer(layer=LAYER, shape=s, dtype=c.op.out.dtype, span=CAUSAL)
    width = s.k_width + s.v_width + PADDING
    pool = poison(torch.empty(24, width * c.block_size, dtype=c.dtype))
    cache = layer_cache(pool, layer, PADDING * c.dtype.itemsize, c.block_size, GROUP)
    out = rows_of(max_tokens, c.op.out.width, c.dtype)
    rope_and_cache(
        qkv,
        op=c.op,
        tables=tables,
        **{name: table(getattr(c.op, name)) for name in ("rotary", "temperature")},
        q_norm=c.weights.get("q"),
        k_norm=c.weights.get("k"),
        cache=cache,
        out=out,
        max_tokens=max_tokens,
    ).run()
    assert pool[:, : PADDING * c.block_size].isnan().all(), "wrote to another layer"
    return Result(out, cache.keys, cache.values, tables)


def table(by_position):
    return None if by_position is None else torch.from_numpy(by_position.table(MAX_LEN))


def reference(c, qkv, chunks=CHUNKS):
    """Returns queries [tokens, width] and the cache: [slots, positions, kv_heads, head_dim]."""
    s = c.op.shape
    shape = (8, MAX_LEN, s.kv_heads)
    cache = ReferenceCache(
        keys={LAYER: np.full((*shape, s.head_dim), np.nan, np.float32)},
        values={LAYER: np.full((*shape, s.v_dim), np.nan, np.float32)},
        dtypes={LAYER: c.op.out.dtype},
    )
    step = ReferenceStep(
        token_ids=np.zeros(len(qkv), np.int64),
        slots=np.array([slot for slot, positions in chunks for _ in positions]),
        positions=np.array([p for _, positions in chunks for p in positions]),
        row_token=np.zeros(0, np.int64),
        weights={name: w.numpy() for name, w in c.weights.items()},
        cache=cache,
    )
    step.write(c.op.qkv, qkv)
    c.op.reference(step)
    return step.read(c.op.out), cache.keys[LAYER], cache.values[LAYER]


def check(c, qkv, result, chunks=CHUNKS):
    out, keys, values = reference(c, qkv, chunks)
    bound = BOUNDS[c.op.out.dtype] if c.op.norm else 0.0
    close(result.out[: len(out), : out.shape[1]], out, bound)
    assert_untouched(result.out, len(out), out.shape[1])
    for paged, plain in ((result.keys, keys), (result.values, values)):
        rest = paged.clone()
        for i, (slot, positions) in enumerate(chunks):
            for p in positions:
                page = int(result.tables.block_tables[GROUP, i, p // c.block_size])
                place = page, slice(None), p % c.block_size
                close(paged[place], plain[slot, p], bound)
                poison(rest[place])
        assert rest.isnan().all()


def close(got, want, bound):
    assert np.abs(got.float().numpy() - want).max() <= bound * np.abs(want).max()


def tokens_of(chunks):
    return sum(len(positions) for _, positions in chunks)


def random_rows(c):
    rows = tokens_of(CHUNKS)
    return np.random.default_rng(5).standard_normal((rows, c.width)).astype(np.float32)


SHAPES = {
    "6/2x48": HeadShape(heads=6, kv_heads=2, head_dim=48),
    "5/1x80": HeadShape(heads=5, kv_heads=1, head_dim=80),
    "2/2x16": HeadShape(heads=2, kv_heads=2, head_dim=16),
    "9/9x128": HeadShape(heads=9, kv_heads=9, head_dim=128),
    "6/2x48, values of 32": HeadShape(heads=6, kv_heads=2, head_dim=48, value_dim=32),
    "3/3x30, values of 12": HeadShape(heads=3, kv_heads=3, head_dim=30, value_dim=12),
}
SMALL = SHAPES["6/2x48"]


@pytest.mark.parametrize(
    ("norms", "dtype"), [(False, DType.BF16), (True, DType.F32)], ids=["plain-bf16", "norms-f32"]
)
@pytest.mark.parametrize("heads", SHAPES.values(), ids=SHAPES)
def test_queries_keys_and_values_as_the_reference_has_them(heads, norms, dtype):
    c = case(heads, norm=norm_of(heads) if norms else None, dtype=dtype)
    qkv = random_rows(c)
    check(c, qkv, run(c, filled(qkv, 12), max_tokens=12))


@pytest.mark.parametrize("block_size", [64, 128])
def test_block_sizes(block_size):
    c = case(SMALL, norm=norm_of(SMALL), block_size=block_size)
    qkv = random_rows(c)
    check(c, qkv, run(c, filled(qkv, 9), max_tokens=9))


HEATED = Temperature(growth=0.4, period=16, offset=1)
OPTIONS = {
    "whole": {"norm": norm_of(SMALL, whole=True)},
    "whole, two programs": {"heads": SHAPES["9/9x128"], "norm": norm_of(SHAPES["9/9x128"], whole=True)},
    "bare": {"norm": norm_of(SMALL, bare=True, values=True)},
    "bare, whole": {"norm": norm_of(SMALL, bare=True, whole=True)},
    "still": {"rotary": None},
    "still, heated": {"rotary": None, "temperature": HEATED},
    "normed, heated": {"norm": norm_of(SMALL, values=True), "temperature": HEATED},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_as_the_reference_has_them(name):
    c = case(**{"heads": SMALL, "dtype": DType.F32, **OPTIONS[name]})
    qkv = random_rows(c)
    check(c, qkv, run(c, filled(qkv, 10), max_tokens=10))


@pytest.mark.parametrize("heads", [SMALL, SHAPES["9/9x128"]], ids=["one program", "two"])
def test_queries_alone_leave_the_pages_as_they_were(heads):
    """A layer that attends to another layer's keys writes no pages."""
    c = case(heads, norm=replace(norm_of(heads), k=None), keys=False)
    qkv = random_rows(c)
    result = run(c, filled(qkv, 12), max_tokens=12)
    out, _, _ = reference(c, qkv)
    close(result.out[: len(out), : out.shape[1]], out, BOUNDS[c.op.out.dtype])
    assert result.keys.isnan().all()
    assert result.values.isnan().all()


NORMS = {"each": norm_of(SMALL), "whole": norm_of(SMALL, whole=True), "none": None}


@pytest.mark.parametrize(("parts", "norm"), [(2, "each"), (3, "whole"), (9, "none")])
def test_a_split_k_input_gives_the_same_bits(parts, norm):
    c, rows = case(SMALL, norm=NORMS[norm]), tokens_of(CHUNKS)
    split_k = random_split_k(np.random.default_rng(parts), rows, c.width, max_rows=12, count=parts)
    split_k = replace(split_k, residual=None, out=None)
    same_bits(run(c, split_k, max_tokens=12), run(c, filled(sum_of(split_k, rows), 12), max_tokens=12))


@pytest.mark.parametrize("whole", [False, True], ids=["each", "whole"])
def test_the_bucket_does_not_matter(whole):
    heads = SHAPES["5/1x80"]
    c = case(heads, norm=norm_of(heads, whole=whole))
    qkv = random_rows(c)
    small, large = (run(c, filled(qkv, n), max_tokens=n) for n in (9, 70))
    same_bits(small, replace(large, out=large.out[:9]))
    assert_untouched(large.out, 9, c.op.out.width)


@pytest.mark.parametrize("max_tokens", [3, 70], ids=["eager", "patient"])
def test_no_tokens_leave_everything_as_it_was(max_tokens):
    c = case(SMALL)
    result = run(c, rows_of(max_tokens, c.width), [], max_tokens=max_tokens)
    for tensor in (result.out, result.keys, result.values):
        assert tensor.isnan().all()


def same_bits(a, b):
    for name in ("out", "keys", "values"):
        assert torch.equal(bits(getattr(a, name)), bits(getattr(b, name))), name
