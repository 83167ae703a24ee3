"""Block of the indexer of sparse attention (DeepSeek V3.2, 2025): it chooses the positions that latent
attention reads. A layer without one reads those that the last layer with one has chosen (GLM-5.2, 2026).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from firelane.models.blocks.blocks import Layer
from firelane.models.blocks.rope import Rope
from firelane.models.blocks.stacked import stacked_matrix
from firelane.program.ops import HeadShape, IndexCache, IndexTopK, Linear
from firelane.program.recipes import Piece
from firelane.program.values import DType, Value, Weight

NORM_EPS = 1e-6
"""The epsilon of the norm of index keys, whatever that of the other norms is."""


@dataclass(frozen=True, kw_only=True)
class Indexer:
    """Sizes of the indexers of a model. topk: positions that a token reads; full: of each layer, whether it
    has one of its own; rope: of heads so wide, of which a part turns."""

    heads: int
    head_dim: int
    topk: int
    full: Sequence[bool]
    rope: Rope

    @property
    def cached(self) -> HeadShape:
        """The heads that choose: one key, and no value."""
        return HeadShape(heads=self.heads, kv_heads=1, head_dim=self.head_dim, shared=True)

    def indices(self, layer: Layer, normed: Value, latent: Value) -> Value:
        """The positions that `layer` reads: I32 [tokens, topk]. normed: its normalised input; latent: what
        its queries are made from."""
        source = max(n for n in range(layer.number + 1) if self.full[n])
        out = Layer(layer.decoder, source, layer.prefix).value("indices", self.topk, DType.I32)
        return out if source != layer.number else self._choose(layer, normed, latent, out)

    def _choose(self, layer: Layer, normed: Value, latent: Value, out: Value) -> Value:
        number = len(self.full) + layer.number  # cache layers of attention are numbered as layers are
        turned = layer.decoder.add(
            IndexCache(
                q=self._product(
                    layer, latent, "index_queries", self._rows("wq_b", layer, latent, self.heads)
                ),
                key=self._product(layer, normed, "index_key", self._rows("wk", layer, normed, 1)),
                layer=number,
                norm=self._vector(layer, "weight"),
                bias=self._vector(layer, "bias"),
                eps=NORM_EPS,
                rotary=self.rope.rotary,
                out=layer.value("index_q", self.heads * self.head_dim, layer.decoder.dtype),
            )
        )
        weights = self._head_weights(layer, normed)
        op = IndexTopK(q=turned, head_weights=weights, layer=number, shape=self.cached, out=out)
        return layer.decoder.add(op)

    def _rows(self, tensor: str, layer: Layer, x: Value, heads: int) -> tuple[Piece, ...]:
        name = layer.tensor(f"self_attn.indexer.{tensor}.weight")
        return self.rope.layout.matrix(name, heads, x.width)

    def _product(self, layer: Layer, x: Value, part: str, pieces: tuple[Piece, ...]) -> Value:
        rows, dtype = sum(piece.height for piece in pieces), layer.decoder.dtype
        weight = Weight(name=layer.name(f"{part}_matrix"), shape=(rows, x.width), dtype=dtype, pieces=pieces)
        return layer.decoder.add(Linear(x=x, weight=weight, out=layer.value(part, rows, DType.F32)))

    def _vector(self, layer: Layer, suffix: str) -> Weight:
        pieces = self.rope.layout.vector(layer.tensor(f"self_attn.indexer.k_norm.{suffix}"))
        name = layer.name(f"index_norm_{suffix}")
        return Weight(name=name, shape=(self.head_dim,), dtype=DType.F32, pieces=pieces)

    def _head_weights(self, layer: Layer, normed: Value) -> Value:
        """The share of each head in the score of a position, with the scale of scores."""
        tensors = [(layer.tensor("self_attn.indexer.weights_proj"), self.heads)]
        weight = stacked_matrix(layer.name("index_weights"), tensors, normed.width, layer.decoder.dtype)
        out = layer.value("index_weights", self.heads, DType.F32)
        scale = (self.heads * self.head_dim) ** -0.5
        return layer.decoder.add(Linear(x=normed, weight=weight, scale=scale, out=out))
