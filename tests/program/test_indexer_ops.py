"""IndexCache and IndexTopK, and attention that reads chosen positions: references against torch and by
hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn

from firelane.contract.span import Window
from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.program.cache_codes import CacheCode
from firelane.program.cache_rewrite import with_cache_code
from firelane.program.ops import Attention, HeadShape, IndexCache, IndexTopK, Rotary
from firelane.program.reference_step import ReferenceCache, ReferenceStep
from firelane.program.values import DType, StepShape, Value
from tests.models.families import FAMILIES
from tests.program.test_reference import random, step_with, value, weight

HEADS, DIM, TOPK = 3, 6, 4
ROWS, START = 5, 7
SHAPE = HeadShape(heads=HEADS, kv_heads=1, head_dim=DIM, shared=True)
ROTARY = Rotary(inverse_frequencies=(1.0, 0.25, 0.0))


def index_cache(**fields: Any) -> IndexCache:
    settings: dict[str, Any] = {
        "q": value("q", HEADS * DIM),
        "key": value("key", DIM),
        "layer": 0,
        "norm": weight("norm", DIM),
        "bias": weight("bias", DIM),
        "eps": 1e-6,
        "rotary": ROTARY,
        "out": value("turned", HEADS * DIM),
    }
    return IndexCache(**{**settings, **fields})


def index_top_k(**fields: Any) -> IndexTopK:
    settings: dict[str, Any] = {
        "q": value("turned", HEADS * DIM),
        "head_weights": value("weights", HEADS),
        "layer": 0,
        "shape": SHAPE,
        "out": value("indices", TOPK, DType.I32),
    }
    return IndexTopK(**{**settings, **fields})


def step_of(values: dict[Value, np.ndarray], **weights: np.ndarray) -> ReferenceStep:
    """Make a step like step_with(), with a cache of index keys."""
    keys = np.full((2, 64, 1, DIM), np.nan, np.float32)
    cache = ReferenceCache(keys={0: keys}, values={0: keys}, dtypes={0: DType.F32})
    return replace(step_with(values, START, **weights), cache=cache)


def turned(x: np.ndarray) -> np.ndarray:
    """x: [ROWS, heads, DIM], the first of three pairs by the position, the second by a quarter of it."""
    angles = np.arange(START, START + ROWS)[:, None, None] * np.array([1.0, 0.25, 0.0])
    z = (x[..., :3] + 1j * x[..., 3:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=-1)


def test_keys_are_normed_with_a_bias_and_turned() -> None:
    op = index_cache()
    q, key, norm, bias = random(ROWS, HEADS * DIM), random(ROWS, DIM) + 3, random(DIM), random(DIM)
    step = step_of({op.q: q, op.key: key}, norm=norm, bias=bias)
    op.reference(step)
    want = fn.layer_norm(
        *(torch.tensor(x) for x in (key,)), (DIM,), torch.tensor(norm), torch.tensor(bias), 1e-6
    )
    found = step.read_cache(0, 1, START, START + ROWS).keys
    np.testing.assert_allclose(found, turned(want.numpy()[:, None]), atol=1e-5)
    heads = q.reshape(ROWS, HEADS, DIM)
    np.testing.assert_allclose(step.read(op.out).reshape(heads.shape), turned(heads), atol=1e-5)
    assert np.isnan(step.cache.keys[0][0]).all()


def chosen(q: np.ndarray, weights: np.ndarray, keys: np.ndarray) -> np.ndarray:
    op = index_top_k()
    step = step_of({op.q: q, op.head_weights: weights})
    step.cache.keys[0][1, : len(keys), 0] = keys
    op.reference(step)
    return step.read(op.out).astype(int)


def test_the_best_positions_are_those_of_torch() -> None:
    """Keys in one half of the space: else many a position has a score of 0, and torch takes any of equals."""
    q, weights, keys = random(ROWS, HEADS * DIM), random(ROWS, HEADS), random(START + ROWS, DIM)
    q[:, ::DIM], keys[:, 0] = 4, 4
    scores = np.einsum("thd,cd->tch", q.reshape(ROWS, HEADS, DIM), keys).clip(0) @ weights[..., None]
    for row, found in enumerate(chosen(q, weights, keys)):
        seen = torch.tensor(scores[row, : START + row + 1, 0])
        assert found.tolist() == sorted(seen.topk(TOPK).indices.tolist())


def test_of_equals_the_lower_position_is_chosen() -> None:
    keys = np.zeros((START + ROWS, DIM), np.float32)
    keys[[2, 9], 0] = 1
    q = np.tile(np.eye(1, DIM, dtype=np.float32), (ROWS, HEADS))
    found = chosen(q, np.ones((ROWS, HEADS), np.float32), keys)
    assert found.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 9], [0, 1, 2, 9], [0, 1, 2, 9]]
    away = chosen(q, -np.ones((ROWS, HEADS), np.float32), keys)
    assert away.tolist() == [[0, 1, 3, 4]] * ROWS


def test_up_to_the_budget_all_positions_are_chosen() -> None:
    op = index_top_k(out=value("indices", START + 2, DType.I32))
    step = step_of({op.q: random(ROWS, HEADS * DIM), op.head_weights: random(ROWS, HEADS)})
    step.cache.keys[0][1, : START + ROWS, 0] = random(START + ROWS, DIM)
    op.reference(step)
    found = step.read(op.out).astype(int)
    assert found[0].tolist() == [*range(START + 1), -1]
    assert found[1].tolist() == [*range(START + 2)]
    assert len({*found[2].tolist()}) == START + 2


def test_attention_reads_the_chosen_positions_alone() -> None:
    heads = HeadShape(heads=2, kv_heads=1, head_dim=DIM, value_dim=4, shared=True)
    indices = value("indices", TOPK, DType.I32)
    q, out = value("q", heads.q_width), value("out", heads.out_width)
    op = Attention(q=q, layer=0, shape=heads, scale=0.5, indices=indices, out=out)
    queries, keys = random(ROWS, heads.q_width), random(START + ROWS, DIM)
    picks = np.array([np.sort(np.random.default_rng(r).permutation(START)[:TOPK]) for r in range(ROWS)])
    step = step_of({q: queries, indices: picks.astype(np.float32)})
    step.cache.keys[0][1, : len(keys), 0] = keys
    step.cache.values[0] = step.cache.keys[0][..., :4]
    op.reference(step)
    mask = np.zeros((ROWS, len(keys)), bool)
    np.put_along_axis(mask, picks, True, axis=1)
    want = fn.scaled_dot_product_attention(
        torch.tensor(queries).reshape(ROWS, 2, DIM).transpose(0, 1),
        torch.tensor(keys).expand(2, -1, -1),
        torch.tensor(keys[:, :4]).expand(2, -1, -1),
        attn_mask=torch.tensor(mask),
        scale=0.5,
    )
    np.testing.assert_allclose(step.read(out), want.transpose(0, 1).reshape(ROWS, -1), atol=1e-5)
    shape = StepShape(tokens=8, outputs=8, attended=8000, context=1000, sequences=1)
    assert op.cost(shape).flops == 2.0 * 8 * TOPK * (heads.q_width + heads.out_width)
    with pytest.raises(AssertionError, match="indices of"):
        replace(op, span=Window(8))


def test_costs_grow_with_the_context() -> None:
    op = index_top_k()
    near, far = (
        op.cost(StepShape(tokens=1, outputs=1, attended=n, context=n, sequences=1)) for n in (100, 300)
    )
    assert far.flops == 3 * near.flops == 2 * 300 * HEADS * DIM
    assert far.kv_bytes == 300 * DIM * 4


@pytest.mark.parametrize(
    "fields",
    [
        {"head_weights": value("weights", HEADS + 1)},
        {"out": value("indices", TOPK)},
        {"shape": replace(SHAPE, shared=False)},
        {"q": value("turned", DIM)},
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(fields: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="IndexTopK 0"):
        index_top_k(**fields)


def test_index_keys_are_of_the_same_group_as_latents() -> None:
    program = load_program(FAMILIES["glm_moe_dsa"]())
    (group,) = program.cache_groups
    assert sorted(layer.layer for layer in group.layers) == [0, 1, 2, 3, 4, 6]
    assert group.bytes_per_token == (4 * 48 + 2 * 48) * 4


def test_codes_of_index_keys_are_refused_by_name() -> None:
    program = load_program(FAMILIES["deepseek_v32"]())
    with pytest.raises(UsageError, match="--kv-cache-dtype int8: keys of an indexer"):
        with_cache_code(program, CacheCode.INT8)
