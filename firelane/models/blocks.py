"""Blocks of a decoder: each adds the ops of one part of the figure, and returns what the next part reads.

    x = embed(decoder)
    for layer in decoder.layers(n):    x = attention(layer, x, ...)
                                       x = mlp(layer, x, ...)
    program = decoder.program(head(decoder, x))

Checkpoint tensors are named model.layers.{i}.…, as in transformers. The residual stream and all sums are F32;
what enters a matrix product has the matrices' dtype. Norm weights and biases are F32 vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from firelane.contract.span import CAUSAL, Span
from firelane.program.ops import (
    SILU,
    Attention,
    Embed,
    Gate,
    GatedLinear,
    HeadNorm,
    HeadShape,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    Rotary,
    Sample,
    SelectRows,
)
from firelane.program.program import Program
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, Rows, Value, Weight

Tensors = Sequence[tuple[str, int]]
"""Tensors of the checkpoint, without the last part of their names, and how many rows each has."""


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder under construction: the sizes that its blocks share, and their ops so far."""

    name: str
    vocab_size: int
    max_model_len: int
    width: int
    """Of the residual stream."""
    eps: float
    """Of every RMS norm."""
    dtype: DType
    """Of matrices and of what they are multiplied with."""
    tied: bool = False
    """Whether the head is the embedding table."""
    ops: list[Op] = field(default_factory=list[Op])

    @cached_property
    def table(self) -> Weight:
        """The embedding table."""
        return _matrix(self, "embed", [("model.embed_tokens", self.vocab_size)], self.width)

    def layers(self, count: int) -> Iterator[Layer]:
        return (Layer(self, number) for number in range(count))

    def add(self, op: Op) -> Value:
        """The value that `op` makes, which is now the last one."""
        self.ops.append(op)
        (made,) = op.outputs
        return made

    def program(self, head: Linear) -> Program:
        """All ops so far, with the draw of the next token from what `head` makes."""
        ops = (*self.ops, Sample(logits=head.out))
        return Program(
            name=self.name,
            vocab_size=self.vocab_size,
            max_model_len=self.max_model_len,
            ops=ops,
            head=head,
        )


@dataclass(frozen=True)
class Layer:
    """One layer of a decoder: it names values, weights and tensors."""

    decoder: Decoder
    number: int

    def name(self, part: str) -> str:
        return f"layers.{self.number}.{part}"

    def tensor(self, part: str) -> str:
        """In the checkpoint, without its last part."""
        return f"model.{self.name(part)}"

    def value(self, part: str, width: int, dtype: DType) -> Value:
        return Value(self.name(part), Rows.TOKEN, width, dtype)

    def stream(self, part: str) -> Value:
        """A value of the residual stream."""
        return self.value(part, self.decoder.width, DType.F32)

    def norm(self, x: Value, part: str, tensor: str) -> Value:
        """x normalised, to be multiplied with a matrix."""
        out = self.value(f"{part}_in", x.width, self.decoder.dtype)
        weight = _vector(self.name(f"{part}_norm"), [(self.tensor(tensor), x.width)])
        return self.decoder.add(RMSNorm(x=x, weight=weight, eps=self.decoder.eps, out=out))

    def linear(
        self, x: Value, part: str, tensors: Tensors, out: Value, *, bias: bool, add: Value | None
    ) -> Value:
        """x times the stacked tensors, plus their biases and `add`, if any."""
        weight = _matrix(self.decoder, self.name(part), tensors, x.width)
        vector = _vector(self.name(f"{part}_bias"), tensors, "bias") if bias else None
        return self.decoder.add(Linear(x=x, weight=weight, bias=vector, residual=add, out=out))


def embed(decoder: Decoder) -> Value:
    """The residual stream before the first layer."""
    out = Value("embedded", Rows.TOKEN, decoder.width, DType.F32)
    return decoder.add(Embed(table=decoder.table, out=out))


def attention(
    layer: Layer,
    x: Value,
    heads: HeadShape,
    rotary: Rotary,
    *,
    span: Span = CAUSAL,
    bias: Literal["", "qkv", "o", "qkvo"] = "",
    head_norm: bool = False,
) -> Value:
    """x + output(attention(rope(qkv(norm(x))))). `bias`: which projections have one; `head_norm`: each query
    and key head is RMS-normalised before it is rotated."""
    dtype = layer.decoder.dtype
    widths = {"q": heads.q_width, "k": heads.kv_width, "v": heads.kv_width}
    projections = [(layer.tensor(f"self_attn.{p}_proj"), rows) for p, rows in widths.items()]
    x_normed = layer.norm(x, "attention", "input_layernorm")
    out = layer.value("qkv", sum(widths.values()), DType.F32)
    qkv = layer.linear(x_normed, "qkv", projections, out, bias="qkv" in bias, add=None)
    norm = _head_norm(layer, heads.head_dim) if head_norm else None
    at, out = layer.number, layer.value("q", heads.q_width, dtype)
    q = layer.decoder.add(RopeAndCache(qkv=qkv, layer=at, shape=heads, rotary=rotary, norm=norm, out=out))
    scale, out = heads.head_dim**-0.5, layer.value("attended", heads.q_width, dtype)
    attended = layer.decoder.add(Attention(q=q, layer=at, shape=heads, scale=scale, span=span, out=out))
    output = [(layer.tensor("self_attn.o_proj"), x.width)]
    return layer.linear(attended, "output", output, layer.stream("middle"), bias="o" in bias, add=x)


def mlp(layer: Layer, x: Value, width: int, *, gate: Gate = SILU, bias: bool = False) -> Value:
    """x + down(gate(norm(x)) * up(norm(x))), `width` wide inside, with `gate`'s function on the gate half."""
    normed = layer.norm(x, "mlp", "post_attention_layernorm")
    halves = [(layer.tensor(f"mlp.{half}_proj"), width) for half in ("gate", "up")]
    weight = _matrix(layer.decoder, layer.name("gate_up"), halves, x.width, WeightLayout.GATED)
    vector = _vector(layer.name("gate_up_bias"), halves, "bias", WeightLayout.GATED) if bias else None
    out = layer.value("gated", width, layer.decoder.dtype)
    gated = layer.decoder.add(GatedLinear(x=normed, weight=weight, bias=vector, gate=gate, out=out))
    down = [(layer.tensor("mlp.down_proj"), x.width)]
    return layer.linear(gated, "down", down, layer.stream("end"), bias=bias, add=x)


def head(decoder: Decoder, x: Value) -> Linear:
    """Logits of the rows that are asked for: lm_head(norm(x))."""
    selected = decoder.add(SelectRows(x=x, out=Value("selected", Rows.OUTPUT, x.width, x.dtype)))
    norm = _vector("norm", [("model.norm", x.width)])
    out = Value("final", Rows.OUTPUT, x.width, decoder.dtype)
    normed = decoder.add(RMSNorm(x=selected, weight=norm, eps=decoder.eps, out=out))
    untied = _matrix(decoder, "lm_head", [("lm_head", decoder.vocab_size)], x.width)
    logits = Value("logits", Rows.OUTPUT, decoder.vocab_size, DType.F32)
    op = Linear(x=normed, weight=decoder.table if decoder.tied else untied, out=logits)
    decoder.add(op)
    return op


def _head_norm(layer: Layer, head_dim: int) -> HeadNorm:
    q, k = (_vector(layer.name(f"{p}_norm"), [(layer.tensor(f"self_attn.{p}_norm"), head_dim)]) for p in "qk")
    return HeadNorm(q=q, k=k, eps=layer.decoder.eps)


def _matrix(
    decoder: Decoder,
    name: str,
    tensors: Tensors,
    k: int,
    layout: WeightLayout = WeightLayout.PLAIN,
) -> Weight:
    """These tensors, one below the other."""
    pieces = tuple(Piece(tensor=f"{tensor}.weight", shape=(rows, k)) for tensor, rows in tensors)
    shape = (sum(rows for _, rows in tensors), k)
    return Weight(name=name, shape=shape, dtype=decoder.dtype, pieces=pieces, layout=layout)


def _vector(
    name: str,
    tensors: Tensors,
    suffix: Literal["weight", "bias"] = "weight",
    layout: WeightLayout = WeightLayout.PLAIN,
) -> Weight:
    pieces = tuple(Piece(tensor=f"{tensor}.{suffix}", shape=(rows,)) for tensor, rows in tensors)
    shape = (sum(rows for _, rows in tensors),)
    return Weight(name=name, shape=shape, dtype=DType.F32, pieces=pieces, layout=layout)
