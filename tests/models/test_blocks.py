"""Blocks: the ops that each adds, what they read, and the tensors that their weights are made of."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import Decoder, Layer, Norms, attention, embed, head, mlp
from firelane.models.blocks.projections import AttentionTensors, Projections
from firelane.models.blocks.rope import Rope
from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.program.ops import (
    SILU,
    Attention,
    Embed,
    GatedLinear,
    HeadShape,
    Linear,
    RMSNorm,
    RopeAndCache,
    Rotary,
    Sample,
)
from firelane.program.recipes import WeightLayout
from firelane.program.reference import materialise
from firelane.program.values import DType, Weight
from tests.models.dense import in_halves

HEADS = HeadShape(heads=4, kv_heads=2, head_dim=8)
ROPE = in_halves(Rotary(inverse_frequencies=(1.0, 0.5, 0.25, 0.125)))


def decoder(*, tied: bool = False) -> Decoder:
    return Decoder(
        name="toy", vocab_size=50, max_model_len=64, width=24, eps=1e-6, dtype=DType.BF16, tied=tied
    )


def kinds(made: Decoder) -> list[str]:
    return [type(op).__name__ for op in made.ops]


def tensors(weight: Weight | None) -> list[tuple[str, tuple[int, ...]]]:
    assert weight is not None
    return [(piece.tensor, piece.shape) for piece in weight.pieces]


def test_attention_adds_to_the_stream() -> None:
    made = decoder()
    x = embed(made)
    out = attention(Layer(made, 3), x, HEADS, ROPE)
    assert kinds(made)[1:] == ["RMSNorm", "Linear", "RopeAndCache", "Attention", "Linear"]
    norm, qkv, rope, attend, output = made.ops[1:]
    assert isinstance(qkv, Linear)
    assert isinstance(rope, RopeAndCache)
    assert isinstance(attend, Attention)
    assert isinstance(output, Linear)
    assert norm.inputs == (x,)
    assert (output.residual, output.out, output.bias) == (x, out, None)
    assert (rope.layer, attend.layer, rope.norm, attend.span) == (3, 3, None, CAUSAL)
    assert attend.scale == 8**-0.5
    at = "model.layers.3.self_attn"
    assert tensors(qkv.weight) == [
        (f"{at}.q_proj.weight", (32, 24)),
        (f"{at}.k_proj.weight", (16, 24)),
        (f"{at}.v_proj.weight", (16, 24)),
    ]
    assert tensors(output.weight) == [(f"{at}.o_proj.weight", (24, 32))]


@pytest.mark.parametrize(
    ("bias", "qkv", "output"), [("", False, False), ("qkv", True, False), ("qkvo", True, True)]
)
def test_biases_of_projections(bias: str, qkv: bool, output: bool) -> None:
    made = decoder()
    attention(Layer(made, 0), embed(made), HEADS, ROPE, bias=bias)  # pyright: ignore[reportArgumentType]
    products = [op for op in made.ops if isinstance(op, Linear)]
    assert [op.bias is not None for op in products] == [qkv, output]
    if qkv:
        assert [name.split(".")[-2:] for name, _ in tensors(products[0].bias)] == [
            [f"{p}_proj", "bias"] for p in "qkv"
        ]


def test_head_norms_and_spans() -> None:
    made = decoder()
    attention(Layer(made, 0), embed(made), HEADS, ROPE, span=Window(16), head_norm="each")
    rope = next(op for op in made.ops if isinstance(op, RopeAndCache))
    assert rope.norm is not None
    assert (rope.norm.q.shape, rope.norm.k.shape, rope.norm.eps) == ((8,), (8,), 1e-6)
    assert rope.weights == (rope.norm.q, rope.norm.k)
    assert next(op for op in made.ops if isinstance(op, Attention)).span == Window(16)


def test_mlp_stacks_gate_and_up() -> None:
    made = decoder()
    x = embed(made)
    out = mlp(Layer(made, 1), x, 40, bias=True)
    _, norm, gated, down = made.ops
    assert isinstance(norm, RMSNorm)
    assert isinstance(gated, GatedLinear)
    assert isinstance(down, Linear)
    assert (gated.gate, gated.weight.layout, gated.bias and gated.bias.layout) == (
        SILU,
        WeightLayout.GATED,
        WeightLayout.GATED,
    )
    at = "model.layers.1.mlp"
    assert tensors(gated.weight) == [(f"{at}.gate_proj.weight", (40, 24)), (f"{at}.up_proj.weight", (40, 24))]
    assert tensors(down.bias) == [(f"{at}.down_proj.bias", (24,))]
    assert (down.residual, down.out) == (x, out)


@pytest.mark.parametrize("tied", [False, True])
def test_the_head_is_named(tied: bool) -> None:
    made = decoder(tied=tied)
    x = embed(made)
    for layer in made.layers(2):
        x = mlp(layer, attention(layer, x, HEADS, ROPE), 40)
    program = made.program(head(made, x))
    assert program.head is program.ops[-2]
    assert isinstance(program.ops[-1], Sample)
    assert program.hidden_width == 24
    assert (program.head.weight is made.table) == tied
    assert len(program.weights) == 1 + 2 * 6 + (1 if tied else 2)
    assert [product.weight.name for product in program.products[-2:]] == [
        "layers.1.down",
        "embed" if tied else "lm_head",
    ]


def test_norms_around_a_block() -> None:
    """With a norm behind it, the sum comes with that norm; without one before it, the stream is rounded."""
    made = decoder()
    x = embed(made)
    behind = Norms(before=None, after="post")
    out = mlp(Layer(made, 2), x, 40, norms=behind, fused="gate_up_proj", scalar="layer_scalar")
    assert kinds(made)[1:] == ["Cast", "GatedLinear", "Linear", "RMSNorm"]
    down, norm = made.ops[-2:]
    assert isinstance(down, Linear)
    assert isinstance(norm, RMSNorm)
    assert (down.residual, norm.residual, norm.x, norm.out) == (None, x, down.out, out)
    assert tensors(norm.weight) == [("model.layers.2.post.weight", (24,))]
    assert tensors(norm.scalar) == [("model.layers.2.layer_scalar", (1,))]
    assert tensors(made.ops[2].weights[0]) == [("model.layers.2.mlp.gate_up_proj.weight", (80, 24))]


def test_fused_and_reordered_projections() -> None:
    """Values keep the checkpoint's order; queries and keys take the kernels', with their biases and norms."""
    made, layout = decoder(), RotaryLayout(8, 8, interleaved=True)
    rope = Rope(rotary=ROPE.rotary, layout=layout)
    attention(
        Layer(made, 0),
        embed(made),
        HEADS,
        rope,
        bias="qkv",
        head_norm="whole",
        tensors=AttentionTensors(qkv=("qkv",)),
    )
    qkv, turned = made.ops[2:4]
    assert isinstance(qkv, Linear)
    assert isinstance(turned, RopeAndCache)
    fused = np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
    found = materialise(qkv.weight, lambda _: fused)
    order = [*range(0, 8, 2), *range(1, 8, 2)]
    np.testing.assert_array_equal(found[:8], fused[order])
    np.testing.assert_array_equal(found[48:], fused[48:])
    assert qkv.bias is not None
    np.testing.assert_array_equal(materialise(qkv.bias, lambda _: fused[:, 0]), found[:, 0])
    assert turned.norm is not None
    assert turned.norm.k is not None
    np.testing.assert_array_equal(
        materialise(turned.norm.k, lambda _: fused[:16, 0])[8:], fused[8:16, 0][order]
    )


def test_factors_of_a_decoder() -> None:
    made = replace(decoder(), embed_scale=2.0, residual_scale=0.5, logits_scale=0.25, logits_softcap=30.0)
    x = mlp(Layer(made, 0), embed(made), 40)
    top = head(made, x)
    embedded, down = made.ops[0], made.ops[3]
    assert isinstance(embedded, Embed)
    assert isinstance(down, Linear)
    assert (embedded.scale, down.scale, top.scale, top.softcap) == (2.0, 0.5, 0.25, 30.0)


def test_gates_lie_behind_the_rows_of_each_query_head() -> None:
    made, tensors = decoder(), AttentionTensors(gated=True)
    attention(Layer(made, 0), embed(made), HEADS, ROPE, tensors=tensors)
    assert kinds(made)[2:] == ["Linear", "RopeAndCache", "Attention", "Linear", "Gated", "Linear"]
    gate = made.ops[5].weights[0]
    stored = np.arange(4 * 16 * 24, dtype=np.float32).reshape(-1, 24)
    found = materialise(gate, lambda _: stored)
    np.testing.assert_array_equal(found, stored.reshape(4, 2, 8, 24)[:, 1].reshape(32, 24))
    assert Projections(heads=HEADS, layout=ROPE.layout, inputs=24, tensors=("q",), gated=True).rows == 64
