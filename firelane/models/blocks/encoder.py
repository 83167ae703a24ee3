"""Blocks of encoders, whose tokens see each other on both sides, and which make one row of a whole text.

All layers share one layer of the cache: keys and values are read in the step that writes them, and by the
next op alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from firelane.contract.span import Bidirectional
from firelane.models.blocks.blocks import Decoder, Layer
from firelane.models.blocks.stacked import Tensors, norm_vector, stored_vector
from firelane.program.ops import (
    AddEmbedding,
    Attention,
    Cast,
    Gated,
    GiveHidden,
    HeadShape,
    LayerNorm,
    Linear,
    Pool,
    PoolKind,
    RMSNorm,
    RopeAndCache,
    Rotary,
    SelectRows,
)
from firelane.program.ops.add_embedding import Place
from firelane.program.ops.gated import Activation
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

CACHE_LAYER = 0
EVERYWHERE = Bidirectional()


@dataclass(frozen=True)
class Stream:
    """The residual stream, and the same as a matrix product takes it."""

    exact: Value
    rounded: Value


def add_table(decoder: Decoder, x: Value, tensor: str, rows: int, *, place: Place, offset: int = 0) -> Value:
    """x, plus a row of the table `tensor` [rows, width], chosen by each token's place."""
    width = decoder.width
    piece = Piece(tensor=f"{tensor}.weight", shape=(rows, width), view=(rows * width,))
    table = Weight(name=f"{place}s", shape=(rows * width,), dtype=DType.F32, pieces=(piece,))
    out = Value(f"with_{place}s", Rows.TOKEN, width, DType.F32)
    return decoder.add(AddEmbedding(x=x, table=table, rows=rows, place=place, offset=offset, out=out))


def normed(decoder: Decoder, x: Value, name: str, tensor: str, *, bias: bool = True) -> Stream:
    """layer_norm(x), from which the stream goes on."""
    weight = stored_vector(f"{name}_norm", f"{tensor}.weight", x.width)
    shift = stored_vector(f"{name}_norm_bias", f"{tensor}.bias", x.width) if bias else None
    out = Value(f"{name}_normed", x.rows, x.width, DType.F32)
    copy = None
    if decoder.dtype is not DType.F32:
        copy = Value(f"{name}_rounded", x.rows, x.width, decoder.dtype)
    decoder.ops.append(LayerNorm(x=x, weight=weight, bias=shift, eps=decoder.eps, out=out, rounded=copy))
    return Stream(out, copy or out)


def normed_in(layer: Layer, x: Value, part: str, tensor: str) -> Value:
    """layer_norm(x), without a bias, as a matrix product takes it, beside the stream."""
    weight = stored_vector(layer.name(f"{part}_norm"), f"{layer.tensor(tensor)}.weight", x.width)
    out = layer.value(f"{part}_in", x.width, layer.decoder.dtype)
    return layer.decoder.add(LayerNorm(x=x, weight=weight, eps=layer.decoder.eps, out=out))


def attend_both_sides(
    layer: Layer,
    qkv: Value,
    heads: HeadShape,
    *,
    rotary: Rotary | None = None,
    span: Bidirectional = EVERYWHERE,
    places: Value | None = None,
    axes: tuple[int, ...] = (),
    scale: float | None = None,
) -> Value:
    """Attention of all heads, before the product behind it. qkv: F32 [q heads | k heads | v heads]. places,
    axes: as in RopeAndCache. scale: None for 1 / sqrt(head_dim)."""
    dtype = layer.decoder.dtype
    q = layer.value("q", heads.q_width, dtype)
    layer.decoder.add(
        RopeAndCache(qkv=qkv, layer=CACHE_LAYER, shape=heads, rotary=rotary, places=places, axes=axes, out=q)
    )
    out = layer.value("attended", heads.out_width, dtype)
    factor = heads.head_dim**-0.5 if scale is None else scale
    return layer.decoder.add(Attention(q=q, layer=CACHE_LAYER, shape=heads, scale=factor, span=span, out=out))


def plain_mlp(
    layer: Layer, x: Value, stream: Value, up: Tensors, down: str, *, act: Activation = "normal", bias: bool
) -> Value:
    """stream + down(u * act(u)) for u = up(x); GELU where act is "normal" or "normal_tanh"."""
    ((_, width),) = up
    inner = layer.linear(x, "mlp_up", up, layer.value("mlp_inner", width, DType.F32), bias=bias, add=None)
    active = layer.decoder.add(
        Gated(x=inner, gate=inner, act=act, out=layer.value("mlp_active", width, layer.decoder.dtype))
    )
    return layer.add_to_stream(
        active, "mlp_down", down, layer.stream("mlp_sum"), stream=stream, bias=bias, norm=None
    )


def pooled(decoder: Decoder, x: Value, kind: PoolKind) -> Value:
    """One row for each text. x: F32."""
    out = Value("pooled", Rows.OUTPUT, x.width, DType.F32)
    return decoder.add(Pool(x=x, kind=kind, out=out))


def output_linear(
    decoder: Decoder, x: Value, name: str, tensor: str, width: int, *, bias: bool = True, tanh: bool = False
) -> Value:
    """A product of rows of whole texts; then its tangent."""
    if x.dtype is not decoder.dtype:
        x = decoder.add(Cast(x=x, out=Value(f"{name}_in", Rows.OUTPUT, x.width, decoder.dtype)))
    weight = Weight.stored(name, (width, x.width), decoder.dtype, f"{tensor}.weight")
    shift = stored_vector(f"{name}_bias", f"{tensor}.bias", width) if bias else None
    out = Value(f"{name}_out", Rows.OUTPUT, width, DType.F32)
    return decoder.add(Linear(x=x, weight=weight, bias=shift, softcap=1.0 if tanh else 0.0, out=out))


def last_classified(decoder: Decoder, x: Value, labels: int, *, norm: str = "model.norm") -> Value:
    """A number for each label, of the last token of a decoder: score(norm(x)). norm: the tensor of the
    norm."""
    selected = decoder.add(SelectRows(x=x, out=Value("selected", Rows.OUTPUT, x.width, x.dtype)))
    weight = norm_vector("norm", norm, x.width, plus=decoder.norm_plus)
    final = Value("final", Rows.OUTPUT, x.width, decoder.dtype)
    normed = decoder.add(RMSNorm(x=selected, weight=weight, eps=decoder.eps, out=final))
    return output_linear(decoder, normed, "score", "score", labels, bias=False)


def encoder_program(
    decoder: Decoder, hidden: Value, *, max_model_len: int, left_out: tuple[str, ...] = ()
) -> Program:
    """All ops so far; `hidden` is what is made of each text."""
    return Program(
        name=decoder.name,
        vocab_size=decoder.vocab_size,
        max_model_len=max_model_len,
        ops=(*decoder.ops, GiveHidden(x=hidden)),
        can_generate=False,
        left_out=left_out,
    )
