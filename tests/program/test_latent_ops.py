"""LatentCache, HeadLinear and Attention over latents: references against torch, which keeps keys and values
of every head apart; costs; refused shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn

from firelane.program.ops import (
    Attention,
    HeadLinear,
    HeadShape,
    LatentCache,
    RopeAndCache,
    Rotary,
    Temperature,
)
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.reference_step import ReferenceCache, ReferenceStep
from firelane.program.values import DType, StepShape, Value, Weight
from tests.program.test_reference import random, step_with, value, weight

HEADS, NOPE, ROPE, RANK, V = 3, 5, 4, 12, 6
ROWS, START = 7, 3
SHAPE = HeadShape(heads=HEADS, kv_heads=1, head_dim=RANK + ROPE, value_dim=RANK, shared=True)
ROTARY = Rotary(inverse_frequencies=(1.0, 0.25))
WARM = Temperature(growth=0.5, period=4)


def by_head(name: str, *shape: int) -> Weight:
    pieces = (Piece(tensor=name, shape=shape),)
    return Weight(name=name, shape=shape, dtype=DType.F32, pieces=pieces, layout=WeightLayout.EXPERTS)


def latent_cache(**fields: Any) -> LatentCache:
    width = HEADS * (NOPE + ROPE)
    settings: dict[str, Any] = {
        "q": value("q", width),
        "latent": value("latent", RANK + ROPE),
        "layer": 0,
        "heads": HEADS,
        "norm": weight("norm", RANK),
        "eps": 1e-6,
        "rotary": ROTARY,
        "out": value("turned", width),
    }
    return LatentCache(**{**settings, **fields})


def head_linear(**fields: Any) -> HeadLinear:
    settings: dict[str, Any] = {
        "x": value("turned", HEADS * (NOPE + ROPE)),
        "weight": by_head("k_b", HEADS, RANK, NOPE),
        "keep": ROPE,
        "out": value("absorbed", SHAPE.q_width),
    }
    return HeadLinear(**{**settings, **fields})


def attention(**fields: Any) -> Attention:
    q, out = value("absorbed", SHAPE.q_width), value("attended", SHAPE.out_width)
    return Attention(**{"q": q, "layer": 0, "shape": SHAPE, "scale": 0.3, "out": out, **fields})


def step_of(values: dict[Value, np.ndarray], **weights: np.ndarray) -> ReferenceStep:
    """Make a step like step_with(), with a cache of latents."""
    keys = np.full((2, 64, 1, RANK + ROPE), np.nan, np.float32)
    cache = ReferenceCache(keys={0: keys}, values={0: keys[..., :RANK]}, dtypes={0: DType.F32})
    return replace(step_with(values, START, **weights), cache=cache)


def test_each_head_has_its_matrix_and_passes_columns_on() -> None:
    x, w = random(ROWS, HEADS * (NOPE + ROPE)), random(HEADS, RANK, NOPE)
    op = head_linear()
    step = step_of({op.x: x}, k_b=w)
    op.reference(step)
    found = step.read(op.out).reshape(ROWS, HEADS, RANK + ROPE)
    heads = x.reshape(ROWS, HEADS, NOPE + ROPE)
    for head in range(HEADS):
        np.testing.assert_allclose(found[:, head, :RANK], heads[:, head, :NOPE] @ w[head].T, atol=1e-5)
    np.testing.assert_array_equal(found[..., RANK:], heads[..., NOPE:])


@pytest.mark.parametrize("rotary", [ROTARY, None], ids=["turned", "still"])
@pytest.mark.parametrize("temperature", [WARM, None], ids=["warm", "cold"])
def test_latents_are_normed_and_the_rest_turned(
    rotary: Rotary | None, temperature: Temperature | None
) -> None:
    op = latent_cache(rotary=rotary, temperature=temperature)
    q, latent, norm = random(ROWS, op.q.width), random(ROWS, RANK + ROPE), random(RANK)
    step = step_of({op.q: q, op.latent: latent}, norm=norm)
    op.reference(step)
    angles = np.arange(START, START + ROWS)[:, None] * np.array([1.0, 0.25])
    turn = np.exp(1j * angles * (rotary is not None))[:, None, :]

    def turned(x: np.ndarray) -> np.ndarray:
        z = (x[..., :2] + 1j * x[..., 2:]) * turn
        return np.concatenate([z.real, z.imag], axis=-1)

    keys, values, _ = step.read_cache(0, 1, START, START + ROWS)
    want = fn.rms_norm(torch.tensor(latent[:, :RANK]), (RANK,), torch.tensor(norm), 1e-6)
    np.testing.assert_allclose(keys[:, 0, :RANK], want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(keys[..., RANK:], turned(latent[:, None, RANK:]), atol=1e-5)
    np.testing.assert_array_equal(values, keys[..., :RANK])
    heads = q.reshape(ROWS, HEADS, NOPE + ROPE)
    factor = 1.0 if temperature is None else WARM.at(step.positions)[:, None, None]
    want_q = np.concatenate([heads[..., :NOPE], turned(heads[..., NOPE:])], axis=-1) * factor
    np.testing.assert_allclose(step.read(op.out).reshape(want_q.shape), want_q, atol=1e-5)
    assert np.isnan(step.cache.keys[0][0]).all()


def test_the_absorbed_form_is_attention_with_keys_and_values_of_each_head() -> None:
    """Queries times W_uk against latents, and attended latents times W_uv."""
    absorb, attend = head_linear(), attention()
    expand = HeadLinear(x=attend.out, weight=by_head("v_b", HEADS, V, RANK), out=value("values", HEADS * V))
    context = START + ROWS
    q, keys = random(ROWS, absorb.x.width), random(context, RANK + ROPE)
    k_b, v_b = random(HEADS, RANK, NOPE), random(HEADS, V, RANK)
    step = step_of({absorb.x: q}, k_b=k_b, v_b=v_b)
    step.cache.keys[0][1, :context, 0] = keys
    for op in (absorb, attend, expand):
        op.reference(step)
    c, r = keys[:, :RANK], keys[:, RANK:]
    own = np.concatenate(
        [np.einsum("cr,hrn->hcn", c, k_b), np.broadcast_to(r, (HEADS, context, ROPE))], axis=-1
    )
    mask = np.arange(context)[None, :] <= np.arange(START, context)[:, None]
    want = fn.scaled_dot_product_attention(
        torch.tensor(q).reshape(ROWS, HEADS, -1).transpose(0, 1),
        torch.tensor(own),
        torch.tensor(np.einsum("cr,hvr->hcv", c, v_b)),
        attn_mask=torch.tensor(mask),
        scale=0.3,
    )
    np.testing.assert_allclose(
        step.read(expand.out), want.transpose(0, 1).reshape(ROWS, -1), rtol=1e-4, atol=1e-5
    )


def test_values_narrower_than_keys() -> None:
    """Rows of qkv end with the narrower heads; attention gives as many numbers for each query head."""
    shape = HeadShape(heads=2, kv_heads=1, head_dim=8, value_dim=6)
    assert (shape.k_width, shape.v_width, shape.out_width, shape.cached_width) == (8, 6, 12, 14)
    turn = RopeAndCache(
        qkv=value("qkv", 30), layer=0, shape=shape, rotary=None, out=value("q", shape.q_width)
    )
    attend = Attention(q=turn.out, layer=0, shape=shape, scale=1.0, out=value("out", 12))
    qkv = random(ROWS, 30)
    cache = ReferenceCache(
        keys={0: np.full((2, 64, 1, 8), np.nan, np.float32)},
        values={0: np.full((2, 64, 1, 6), np.nan, np.float32)},
        dtypes={0: DType.F32},
    )
    step = replace(step_with({turn.qkv: qkv}), cache=cache)
    for op in (turn, attend):
        op.reference(step)
    q, k, v = np.split(qkv, [16, 24], axis=1)
    want = fn.scaled_dot_product_attention(
        torch.tensor(q).reshape(ROWS, 2, 8).transpose(0, 1),
        torch.tensor(k)[None].expand(2, -1, -1),
        torch.tensor(v)[None].expand(2, -1, -1),
        is_causal=True,
        scale=1.0,
    )
    np.testing.assert_allclose(step.read(attend.out), want.transpose(0, 1).reshape(ROWS, 12), atol=1e-5)


def test_costs() -> None:
    """Each position of the context is read once, for all heads."""
    shape = StepShape(tokens=2, outputs=2, attended=50, context=50, sequences=2)
    cost = attention().cost(shape)
    assert cost.kv_bytes == 50 * (RANK + ROPE) * 4
    assert cost.flops == 2 * 50 * HEADS * (RANK + ROPE + RANK)
    assert latent_cache().cost(shape).kv_bytes == 2 * (RANK + ROPE) * 4
    made = head_linear().cost(shape)
    assert made.flops == 2 * 2 * HEADS * RANK * NOPE
    assert made.weight_bytes == HEADS * RANK * NOPE * 4


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"q": value("q", 26)}, "q 26, out 27"),
        ({"heads": 2}, "27 of 2 heads"),
        ({"norm": weight("norm", RANK + ROPE + 1)}, "norm"),
        ({"norm": weight("norm", 2)}, "14 of q's columns"),
        ({"rotary": Rotary(inverse_frequencies=(1.0,))}, "frequencies"),
        ({"latent": value("latent", RANK + ROPE, DType.BF16)}, "F32"),
    ],
    ids=str,
)
def test_caches_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        latent_cache(**fields)


def test_shapes_that_cannot_be() -> None:
    with pytest.raises(AssertionError, match="layout"):
        head_linear(weight=weight("k_b", RANK, NOPE))
    with pytest.raises(AssertionError, match="keep 3"):
        head_linear(keep=3)
    with pytest.raises(AssertionError, match="dtype"):
        head_linear(out=value("absorbed", SHAPE.q_width, DType.BF16))
    with pytest.raises(AssertionError, match="values of 18 in keys of 16"):
        replace(SHAPE, value_dim=18)
    with pytest.raises(AssertionError, match="out 48"):
        attention(out=value("attended", SHAPE.q_width))
    with pytest.raises(AssertionError, match="LatentCache"):
        RopeAndCache(qkv=value("qkv", 80), layer=0, shape=SHAPE, rotary=None, out=value("q", 48))
