"""Blocks of recurrent layers: those that remember by the delta rule, and short convolutions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from firelane.models.blocks.blocks import Layer
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import DeltaRule, DeltaShape, Gated, Linear, RMSNorm, ShortConv
from firelane.program.recipes import Piece
from firelane.program.values import DType, Value, Weight

MIDDLE = "middle"
"""The stream behind a layer's first block."""


class Columns(NamedTuple):
    """Numbers of each row of a value, from `first` on."""

    value: Value
    first: int = 0


@dataclass(frozen=True, kw_only=True)
class Delta:
    """A layer's delta rule, and names of its tensors below the layer. conv: tensors of the convolution that
    queries, keys and values go through, with the channels of each. gate: the function of the gate of what
    heads remember, behind its norm. a_log_shape: in the checkpoint, if it is not one number a head, one
    after the other."""

    shape: DeltaShape
    taps: int
    conv: tuple[tuple[str, int], ...]
    a_log: str
    a_log_shape: tuple[int, ...] = ()
    dt_bias: str
    norm: str
    out: str
    gate: Literal["silu", "sigmoid"] = "silu"


def delta(
    layer: Layer, x: Value, how: Delta, *, qkv: Value, decay: Columns, beta: Columns, gate: Columns
) -> Value:
    """x + out(norm(delta_rule(silu(convolution(qkv)))) * gate(gate)), each head normalised by itself."""
    shape, add = how.shape, layer.decoder.add
    conv = ShortConv(
        x=qkv,
        taps=how.taps,
        weight=taps_of(layer, "conv", how.conv, how.taps),
        act="silu",
        out=layer.value("convolved", shape.qkv_width, DType.F32),
    )
    rule = DeltaRule(
        qkv=add(conv),
        decay=decay.value,
        beta=beta.value,
        columns=(decay.first, beta.first),
        a_log=_vector(layer, "a_log", how.a_log, shape.heads, stored=how.a_log_shape),
        dt_bias=_vector(layer, "dt_bias", how.dt_bias, shape.decay_width),
        shape=shape,
        out=layer.value("remembered", shape.value_width, DType.F32),
    )
    norm = RMSNorm(
        x=add(rule),
        weight=_vector(layer, "heads_norm", how.norm, shape.value_dim, times=shape.heads),
        eps=layer.decoder.eps,
        groups=shape.heads,
        out=layer.value("recalled", shape.value_width, DType.F32),
    )
    out = layer.value("let_through", shape.value_width, layer.decoder.dtype)
    passed = Gated(x=add(norm), gate=gate.value, act=how.gate, column=gate.first, out=out)
    tensors = [(layer.tensor(how.out), x.width)]
    return layer.linear(add(passed), "output", tensors, layer.stream(MIDDLE), bias=False, add=x)


@dataclass(frozen=True, kw_only=True)
class ShortConvolution:
    """A layer's convolution of its channels, and names of its tensors below the layer. inputs: rows of the
    gate in front, of the gate behind, and of what is convolved."""

    taps: int
    inputs: str
    conv: str
    out: str
    norm: str


def short_convolution(layer: Layer, x: Value, how: ShortConvolution) -> Value:
    """x + out(gate behind * convolution(gate in front * input)), all three of norm(x)."""
    width, add, tensor = x.width, layer.decoder.add, f"{layer.tensor(how.inputs)}.weight"
    shape = 3 * width, width
    gates = Piece(tensor=tensor, shape=shape, rows=range(2 * width))
    pieces = (Piece(tensor=tensor, shape=shape, rows=range(2 * width, 3 * width)), gates)
    rows = project(layer, layer.read(x, "conv", how.norm), "projections", pieces)
    before = layer.value("gated_input", width, DType.F32)
    conv = ShortConv(
        x=add(Gated(x=rows, gate=rows, act="none", column=width, out=before)),
        taps=how.taps,
        weight=taps_of(layer, "conv", ((how.conv, width),), how.taps),
        out=layer.value("convolved", width, DType.F32),
    )
    behind = layer.value("let_through", width, layer.decoder.dtype)
    passed = add(Gated(x=add(conv), gate=rows, act="none", column=2 * width, out=behind))
    tensors = [(layer.tensor(how.out), width)]
    return layer.linear(passed, "output", tensors, layer.stream(MIDDLE), bias=False, add=x)


def project(
    layer: Layer,
    x: Value,
    part: str,
    pieces: tuple[Piece, ...],
    others: tuple[tuple[Piece, ...], ...] = (),
) -> Value:
    """x times the stacked pieces, in float32."""
    rows, dtype = sum(piece.height for piece in pieces), layer.decoder.dtype
    shape, name = (rows, x.width), layer.name(part)
    weight = Weight(name=name, shape=shape, dtype=dtype, pieces=pieces, others=others)
    return layer.decoder.add(Linear(x=x, weight=weight, out=layer.value(part, rows, DType.F32)))


def read_taps(config: ConfigReader, key: str) -> int:
    """Inputs of a convolution at each place. Raises UnsupportedModelError where it is none."""
    taps = config.integer(key, 4)
    if taps < 2:
        raise config.refusal(key, taps, "at least 2 is needed")
    return taps


def taps_of(layer: Layer, part: str, tensors: tuple[tuple[str, int], ...], taps: int) -> Weight:
    """The weight of a convolution, tap by tap, whose tensors [channels, 1, taps] are stacked."""
    pieces = tuple(
        Piece(
            tensor=f"{layer.tensor(tensor)}.weight",
            shape=(channels, 1, taps),
            view=(channels * taps,),
            take=(range(tap, channels * taps, taps),),
        )
        for tap in range(taps)
        for tensor, channels in tensors
    )
    size = taps * sum(channels for _, channels in tensors)
    return Weight(name=layer.name(part), shape=(size,), dtype=DType.F32, pieces=pieces)


def _vector(
    layer: Layer, part: str, tensor: str, size: int, *, times: int = 1, stored: tuple[int, ...] = ()
) -> Weight:
    """A tensor of `size` numbers, `times` times; `stored`: its shape, where it has other axes."""
    shape, view = (stored, (size,)) if stored else ((size,), ())
    piece = Piece(tensor=layer.tensor(tensor), shape=shape, view=view)
    return Weight(name=layer.name(part), shape=(times * size,), dtype=DType.F32, pieces=(piece,) * times)
