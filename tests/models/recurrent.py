"""Programs of recurrent layers of any sizes, for tests: each option of their ops."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from firelane.models.blocks.blocks import Decoder, Layer, attention, embed, head
from firelane.models.blocks.rope import plain_rope
from firelane.program.ops import (
    DeltaRule,
    DeltaShape,
    Gated,
    HeadShape,
    Linear,
    RMSNorm,
    ShortConv,
    StateShape,
    StateSpace,
)
from firelane.program.ops.gated import Activation
from firelane.program.program import Program
from firelane.program.values import DType, Value, Weight


@dataclass(frozen=True, kw_only=True)
class RecurrentSpec:
    """For each shape a delta rule, or a state space, a convolution of the stream, and attention. `taps`: of
    the convolutions."""

    hidden_size: int
    dtype: DType
    shapes: tuple[DeltaShape | StateShape, ...]
    taps: int = 4
    act: Literal["silu", "none"] = "silu"
    gate: Activation = "silu"
    floor: float | None = None
    limits: tuple[float, float] = (0.0, math.inf)
    bias: bool = False
    vocab_size: int = 331
    heads: HeadShape = field(default=HeadShape(heads=2, kv_heads=1, head_dim=16))


def recurrent_program(spec: RecurrentSpec) -> Program:
    rope = plain_rope(100.0, head_dim=spec.heads.head_dim)
    decoder = Decoder(
        name="recurrent",
        vocab_size=spec.vocab_size,
        max_model_len=512,
        width=spec.hidden_size,
        eps=1e-5,
        dtype=spec.dtype,
    )
    x = embed(decoder)
    for layer, shape in zip(decoder.layers(len(spec.shapes)), spec.shapes, strict=True):
        mix = _delta if isinstance(shape, DeltaShape) else _space
        x = mix(layer, spec, shape, x)
        x = _convolution(layer, spec, x)
        x = attention(layer, x, spec.heads, rope)
    return decoder.program(head(decoder, x))


def _delta(layer: Layer, spec: RecurrentSpec, s: DeltaShape, x: Value) -> Value:
    """All projections are one, with what the rule reads and what it does not between."""
    normed, add = layer.read(x, "delta", "input_layernorm"), layer.decoder.add
    columns = s.qkv_width, s.qkv_width + s.value_width, s.qkv_width + s.value_width + s.heads
    gate, betas, decays = columns
    every = _linear(layer, "projections", normed, decays + s.decay_width)
    mixed = add(_conv(layer, spec, "mixed", every, s.qkv_width))
    rule = DeltaRule(
        qkv=mixed,
        decay=every,
        beta=every,
        columns=(decays, betas),
        a_log=_vector(layer, "a_log_bias", s.heads),
        dt_bias=_vector(layer, "dt_bias", s.decay_width),
        shape=s,
        floor=spec.floor,
        out=layer.value("remembered", s.value_width, DType.F32),
    )
    norm = RMSNorm(
        x=add(rule),
        weight=_vector(layer, "delta_out", s.value_width),
        eps=1e-5,
        groups=s.heads,
        out=layer.value("delta_normed", s.value_width, DType.F32),
    )
    out = layer.value("delta_gated", s.value_width, spec.dtype)
    gated = add(Gated(x=add(norm), gate=every, act=spec.gate, column=gate, out=out))
    return _linear(layer, "delta_end", gated, x.width, residual=x)


def _space(layer: Layer, spec: RecurrentSpec, s: StateShape, x: Value) -> Value:
    normed, add = layer.read(x, "space", "input_layernorm"), layer.decoder.add
    every = _linear(layer, "projections", normed, s.xbc_width + s.heads)
    op = StateSpace(
        xbc=add(_conv(layer, spec, "mixed", every, s.xbc_width)),
        dt=every,
        column=s.xbc_width,
        a_log=_vector(layer, "a_log_bias", s.heads),
        dt_bias=_vector(layer, "dt_bias", s.heads),
        skip=_vector(layer, "skip", s.heads),
        shape=s,
        limits=spec.limits,
        out=layer.value("remembered", s.width, DType.F32),
    )
    cast = layer.read(add(op), "space_end", None)
    return _linear(layer, "space_end", cast, x.width, residual=x)


def _convolution(layer: Layer, spec: RecurrentSpec, x: Value) -> Value:
    """The stream itself is gated, convolved and gated; two of three projections are behind each other."""
    normed, width = layer.read(x, "conv", "conv_norm"), x.width
    both = _linear(layer, "conv_gates", normed, 2 * width)
    into = layer.value("conv_in_f32", width, DType.F32)
    first = layer.decoder.add(Gated(x=normed, gate=both, act="none", column=width, out=into))
    mixed = layer.decoder.add(_conv(layer, spec, "convolved", first, width))
    out = layer.value("conv_gated", width, spec.dtype)
    second = layer.decoder.add(Gated(x=mixed, gate=both, act="sigmoid", out=out))
    return _linear(layer, "conv_end", second, width, residual=x)


def _conv(layer: Layer, spec: RecurrentSpec, part: str, x: Value, width: int) -> ShortConv:
    return ShortConv(
        x=x,
        taps=spec.taps,
        weight=_vector(layer, f"{part}_taps_bias", spec.taps * width),
        bias=_vector(layer, f"{part}_bias", width) if spec.bias else None,
        act=spec.act,
        out=layer.value(part, width, DType.F32),
    )


def _linear(layer: Layer, part: str, x: Value, width: int, residual: Value | None = None) -> Value:
    weight = Weight.stored(layer.name(f"{part}_matrix"), (width, x.width), x.dtype)
    out = layer.value(part, width, DType.F32)
    return layer.decoder.add(Linear(x=x, weight=weight, residual=residual, out=out))


def _vector(layer: Layer, part: str, size: int) -> Weight:
    """Drawn around zero where its name says bias, else around one."""
    return Weight.stored(layer.name(part), (size,), DType.F32)


RECURRENT_SPECS = {
    "bf16-recurrent": RecurrentSpec(
        hidden_size=104,
        dtype=DType.BF16,
        shapes=(
            DeltaShape(key_heads=2, heads=6, key_dim=48, value_dim=80),
            StateShape(heads=3, groups=1, head_dim=32, state_dim=64),
        ),
    ),
    "f32-recurrent": RecurrentSpec(
        hidden_size=84,
        dtype=DType.F32,
        shapes=(
            DeltaShape(key_heads=3, heads=3, key_dim=32, value_dim=16, by_channel=True),
            DeltaShape(key_heads=1, heads=2, key_dim=16, value_dim=64),
            StateShape(heads=6, groups=2, head_dim=48, state_dim=32),
        ),
        limits=(0.3, 1.1),
        taps=3,
        act="none",
        gate="sigmoid",
        bias=True,
    ),
}
RECURRENT_SPECS_HERE = {
    "bf16-recurrent-floor": RecurrentSpec(
        hidden_size=300,
        dtype=DType.BF16,
        shapes=(DeltaShape(key_heads=2, heads=2, key_dim=64, value_dim=64, by_channel=True),),
        taps=2,
        gate="gelu_tanh",
        floor=-5.0,
    ),
}
