"""Block of decoders with latent attention (DeepSeek V2, 2024): what the cache keeps of a token is one latent,
from which the keys and values of all heads are made, and one key for the position.

Keys and values are never made: each head's matrices multiply its query and its result instead ("absorbed"),
in prefill as in decode, so that bits do not depend on which of both computed a token.
"""

from __future__ import annotations

from dataclasses import dataclass

from firelane.models.blocks.blocks import BEFORE_ATTENTION, Layer
from firelane.models.blocks.indexer import Indexer
from firelane.models.blocks.rope import Rope
from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.program.ops import Attention, HeadLinear, HeadShape, LatentCache, Linear, RMSNorm, Temperature
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, Value, Weight

NORM_EPS = 1e-6
"""The epsilon of the norms of latents, whatever that of the other norms is."""


@dataclass(frozen=True, kw_only=True)
class LatentShape:
    """Sizes of latent attention. A head's query and key have `nope` columns without and `rope` with a
    position; its value has `value`. rank: of the latent; query_rank: of what queries are made from, 0 for the
    stream itself."""

    heads: int
    rank: int
    query_rank: int
    nope: int
    rope: int
    value: int

    @property
    def query(self) -> int:
        return self.nope + self.rope

    @property
    def cached(self) -> HeadShape:
        """The heads that attention sees: as wide as what the cache keeps of a token."""
        width = self.rank + self.rope
        return HeadShape(heads=self.heads, kv_heads=1, head_dim=width, value_dim=self.rank, shared=True)


def latent(
    layer: Layer,
    x: Value,
    shape: LatentShape,
    rope: Rope | None,
    *,
    temperature: Temperature | None = None,
    indexer: Indexer | None = None,
) -> Value:
    """x + output(attention(norm(x))), with the latents of norm(x) in the cache. rope: None without
    positions; indexer: None where attention reads all of them."""
    normed = layer.read(x, "attention", BEFORE_ATTENTION.before)
    layout = rope.layout if rope else RotaryLayout(shape.rope, shape.rope)
    read = _query_latent(layer, normed, shape) if shape.query_rank else normed
    indices = indexer.indices(layer, normed, read) if indexer else None
    turned = layer.decoder.add(
        LatentCache(
            q=_queries(layer, read, shape, layout),
            latent=_product(layer, normed, "latent", _latent_rows(layer, shape, layout, x.width)),
            layer=layer.number,
            heads=shape.heads,
            norm=layer.norm_weight("latent_norm", "self_attn.kv_a_layernorm", shape.rank),
            eps=NORM_EPS,
            rotary=rope.rotary if rope else None,
            temperature=temperature,
            out=layer.value("q", shape.heads * shape.query, layer.decoder.dtype),
        )
    )
    attended = _attend(layer, turned, shape, rope, indices)
    return layer.add_to_stream(
        _by_head(layer, attended, "values", shape, shape.value, 0),
        "output",
        "self_attn.o_proj",
        layer.stream("middle"),
        stream=x,
        bias=False,
        norm=None,
    )


def _query_latent(layer: Layer, normed: Value, shape: LatentShape) -> Value:
    name, rank = layer.tensor("self_attn.q_a_proj.weight"), shape.query_rank
    made = _product(layer, normed, "query_latent", (Piece(tensor=name, shape=(rank, normed.width)),))
    norm = layer.norm_weight("query_norm", "self_attn.q_a_layernorm", rank)
    out = layer.value("query_in", rank, layer.decoder.dtype)
    return layer.decoder.add(RMSNorm(x=made, weight=norm, eps=NORM_EPS, out=out))


def _queries(layer: Layer, read: Value, shape: LatentShape, layout: RotaryLayout) -> Value:
    name = layer.tensor(f"self_attn.{'q_b_proj' if shape.query_rank else 'q_proj'}.weight")
    rows = layout.matrix(name, shape.heads, read.width, before=shape.nope)
    return _product(layer, read, "queries", rows)


def _latent_rows(layer: Layer, shape: LatentShape, layout: RotaryLayout, inputs: int) -> tuple[Piece, ...]:
    name = layer.tensor("self_attn.kv_a_proj_with_mqa.weight")
    return layout.matrix(name, 1, inputs, before=shape.rank)


def _product(layer: Layer, x: Value, part: str, pieces: tuple[Piece, ...]) -> Value:
    rows, dtype = sum(piece.height for piece in pieces), layer.decoder.dtype
    weight = Weight(name=layer.name(f"{part}_matrix"), shape=(rows, x.width), dtype=dtype, pieces=pieces)
    return layer.decoder.add(Linear(x=x, weight=weight, out=layer.value(part, rows, DType.F32)))


def _attend(
    layer: Layer, turned: Value, shape: LatentShape, rope: Rope | None, indices: Value | None
) -> Value:
    heads, mscale = shape.cached, rope.mscale if rope else 1.0
    return layer.decoder.add(
        Attention(
            q=_by_head(layer, turned, "absorbed", shape, shape.rank, shape.rope),
            layer=layer.number,
            shape=heads,
            scale=shape.query**-0.5 * mscale**2,
            indices=indices,
            out=layer.value("attended", heads.out_width, layer.decoder.dtype),
        )
    )


def _by_head(layer: Layer, x: Value, part: str, shape: LatentShape, width: int, keep: int) -> Value:
    """Queries without a position times the matrix that would make keys of latents, transposed, the columns
    with a position kept; or attended latents times the matrix that makes values. Both are in one tensor, or
    in one each, as they are multiplied."""
    name, rows = layer.tensor("self_attn.kv_b_proj.weight"), shape.nope + shape.value
    stored, view = (shape.heads * rows, shape.rank), (shape.heads, rows, shape.rank)
    if keep:
        piece = Piece(
            tensor=name, shape=stored, view=view, order=(0, 2, 1), take=(None, None, range(shape.nope))
        )
    else:
        piece = Piece(tensor=name, shape=stored, view=view, take=(None, range(shape.nope, rows)))
    matrices = (shape.heads, width, piece.width)
    apart = layer.tensor(f"self_attn.{'k' if keep else 'v'}_b_proj.weight")
    weight = Weight(
        name=layer.name(f"{part}_matrices"),
        shape=matrices,
        dtype=layer.decoder.dtype,
        pieces=(piece,),
        layout=WeightLayout.EXPERTS,
        others=((Piece(tensor=apart, shape=matrices),),),
    )
    out = layer.value(part, shape.heads * (width + keep), layer.decoder.dtype)
    return layer.decoder.add(HeadLinear(x=x, weight=weight, keep=keep, out=out))
