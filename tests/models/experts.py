"""A decoder of any sizes whose layers have experts, for tests: each way to route, biases, a shared expert."""

from __future__ import annotations

from dataclasses import dataclass, replace

from firelane.models.blocks.blocks import Decoder, Layer, attention, embed, head
from firelane.models.blocks.rope import plain_rope
from firelane.program.ops import (
    SILU,
    ExpertGatedLinear,
    ExpertLinear,
    Gate,
    Groups,
    HeadShape,
    Linear,
    Route,
)
from firelane.program.program import Program
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, Value, Weight


@dataclass(frozen=True, kw_only=True)
class ExpertsSpec:
    """One entry of `routes` a layer: a Route whose values are made here. `shared`: that of a last expert for
    all rows, whose share is a sigmoid."""

    hidden_size: int
    width: int
    experts: int
    picks: int
    dtype: DType
    vocab_size: int = 331
    routes: tuple[dict[str, object], ...] = ({},)
    bias: bool = False
    gate: Gate = SILU
    early_shares: bool = False
    """Shares multiply what the first product makes."""
    shared: bool = False
    residual: bool = True


def experts_program(spec: ExpertsSpec) -> Program:
    heads = HeadShape(heads=2, kv_heads=1, head_dim=16)
    rope = plain_rope(100.0, head_dim=heads.head_dim)
    decoder = Decoder(
        name="experts",
        vocab_size=spec.vocab_size,
        max_model_len=512,
        width=spec.hidden_size,
        eps=1e-5,
        dtype=spec.dtype,
    )
    x = embed(decoder)
    for layer, route in zip(decoder.layers(len(spec.routes)), spec.routes, strict=True):
        x = attention(layer, x, heads, rope)
        normed = layer.read(x, "mlp", "post_attention_layernorm")
        if spec.shared:
            one = replace(spec, experts=1, picks=1, bias=False, early_shares=False, residual=True)
            x = _experts(layer, "shared", one, {"score": "sigmoid", "normalise": False}, normed, x)
        x = _experts(layer, "experts", spec, route, normed, x if spec.residual else None)
    return decoder.program(head(decoder, x))


def _experts(
    layer: Layer, part: str, spec: ExpertsSpec, route: dict[str, object], normed: Value, x: Value | None
) -> Value:
    e, k, n, hidden = spec.experts, spec.picks, spec.width, spec.hidden_size
    name = layer.name
    router = Weight.stored(name(f"{part}.router"), (e, hidden), spec.dtype)
    out = layer.value(f"{part}.logits", e, DType.F32)
    logits = layer.decoder.add(Linear(x=normed, weight=router, out=out))
    picks = layer.value(f"{part}.picks", k, DType.I32)
    shares = layer.value(f"{part}.shares", k, DType.F32)
    vectors = {key: _vector(name(f"{part}.{key}"), e) for key in ("bias", "factors") if route.get(key)}
    layer.decoder.ops.append(Route(logits=logits, picks=picks, shares=shares, **{**route, **vectors}))  # type: ignore[arg-type]
    gated = layer.decoder.add(
        ExpertGatedLinear(
            x=normed,
            picks=picks,
            weight=_matrices(name(f"{part}.gate_up"), (e, 2 * n, hidden), spec.dtype),
            bias=_biases(name(f"{part}.gate_up_bias"), (e, 2 * n, 1)) if spec.bias else None,
            gate=spec.gate,
            shares=shares if spec.early_shares else None,
            out=layer.value(f"{part}.gated", k * n, spec.dtype),
        )
    )
    return layer.decoder.add(
        ExpertLinear(
            x=gated,
            picks=picks,
            shares=None if spec.early_shares else shares,
            weight=_matrices(name(f"{part}.down"), (e, hidden, n), spec.dtype),
            bias=_biases(name(f"{part}.down_bias"), (e, hidden, 1)) if spec.bias else None,
            residual=x,
            out=layer.stream(f"{part}.end"),
        )
    )


def _matrices(name: str, shape: tuple[int, ...], dtype: DType) -> Weight:
    layout = WeightLayout.EXPERTS if name.endswith(("down", "down_bias")) else WeightLayout.GATED_EXPERTS
    pieces = (Piece(tensor=name, shape=shape),)
    return Weight(name=name, shape=shape, dtype=dtype, pieces=pieces, layout=layout)


def _biases(name: str, shape: tuple[int, ...]) -> Weight:
    return _matrices(name, shape, DType.F32)


def _vector(name: str, size: int) -> Weight:
    return Weight.stored(name, (size,), DType.F32)


GROUPED = Groups(count=4, keep=2, best=2)
EXPERT_SPECS = {
    "bf16-experts": ExpertsSpec(
        hidden_size=104,
        width=44,
        experts=12,
        picks=3,
        dtype=DType.BF16,
        routes=({}, {"score": "sigmoid", "bias": True, "groups": GROUPED, "scale": 2.5}),
        shared=True,
    ),
    "f32-experts": ExpertsSpec(
        hidden_size=80,
        width=36,
        experts=20,
        picks=4,
        dtype=DType.F32,
        routes=({"normalise": False, "factors": True}, {"groups": Groups(count=5, keep=3, best=1)}),
        bias=True,
        gate=Gate(alpha=1.702, limit=0.5, up_offset=1.0),
        residual=False,
    ),
}
EXPERT_SPECS_HERE = {
    "bf16-experts-early": ExpertsSpec(
        hidden_size=112,
        width=48,
        experts=3,
        picks=1,
        dtype=DType.BF16,
        routes=({"score": "sigmoid", "normalise": False},),
        early_shares=True,
    ),
}
