"""Blocks of a decoder: each adds the ops of one part of the figure, and returns what the next part reads.

    x = embed(decoder)
    for layer in decoder.layers(n):    x = attention(layer, x, ...)
                                       x = mlp(layer, x, ...)
    program = decoder.program(head(decoder, x))

Checkpoint tensors are named model.layers.{i}.…, as in transformers. The residual stream and all sums are F32;
what enters a matrix product has the matrices' dtype. Norm weights and biases are F32 vectors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from firelane.contract.span import CAUSAL, Span
from firelane.models.blocks.projections import SEPARATE, AttentionTensors, Projections
from firelane.models.blocks.rope import Rope
from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.models.blocks.stacked import Tensors, norm_vector, stacked_matrix, stacked_vector, stored_vector
from firelane.models.blocks.streams import Streams
from firelane.program.ops import (
    SILU,
    Attention,
    Cast,
    Embed,
    Gate,
    Gated,
    GatedLinear,
    HeadNorm,
    HeadShape,
    Linear,
    Op,
    RMSNorm,
    RopeAndCache,
    Sample,
    SelectRows,
    Temperature,
)
from firelane.program.program import Program
from firelane.program.recipes import WeightLayout
from firelane.program.values import DType, Rows, Value, Weight

Bias = Literal["", "qkv", "o", "qkvo"]
"""Projections of attention that have one."""
HeadNorms = Literal["", "each", "whole", "qkv", "bare"]
"""Heads that are normalised: none; each query and key head; all of those of a row together; each query, key
and value head; each query and key head, without weights."""
MLP_PARTS = ("gate_proj", "up_proj", "down_proj")


@dataclass(frozen=True, kw_only=True)
class Norms:
    """Tensors of the norms of a block: of what it reads, and of what it adds to the stream; None for none."""

    before: str | None
    after: str | None = None


BEFORE_ATTENTION = Norms(before="input_layernorm")
BEFORE_MLP = Norms(before="post_attention_layernorm")


@dataclass(frozen=True, kw_only=True)
class AttentionScores:
    """Factors of attention's scores, and what joins them."""

    scale: float | None = None
    """None: 1 / sqrt(head_dim)."""
    softcap: float = 0.0
    """0: none."""
    sinks: str = ""
    """The tensor of one more score for each head, below the layer; "": there is none."""
    temperature: Temperature | None = None


PLAIN_SCORES = AttentionScores()


@dataclass(frozen=True, kw_only=True)
class Decoder:
    """A decoder under construction: the sizes that its blocks share, and their ops so far."""

    name: str
    vocab_size: int
    max_model_len: int
    width: int
    """Width of the residual stream."""
    eps: float
    """The epsilon of every RMS norm."""
    dtype: DType
    """The dtype of matrices and of what they are multiplied with."""
    tied: bool = False
    """Whether the head is the embedding table."""
    embed_scale: float = 1.0
    """The factor of embeddings that are looked up."""
    residual_scale: float = 1.0
    """The factor of what a block without a norm behind it adds to the stream."""
    logits_scale: float = 1.0
    logits_softcap: float = 0.0
    """0: none."""
    norm_plus: float = 0.0
    """Added to the weights of all norms."""
    embeddings: str = "model.embed_tokens"
    """The tensor of the embedding table."""
    ops: list[Op] = field(default_factory=list[Op])
    streams: Streams = field(default_factory=Streams)

    @cached_property
    def table(self) -> Weight:
        """The embedding table."""
        return stacked_matrix("embed", [(self.embeddings, self.vocab_size)], self.width, self.dtype)

    def layers(self, count: int) -> Iterator[Layer]:
        self.streams.begin(count)
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
            streams=self.streams.known(),
        )


@dataclass(frozen=True)
class Layer:
    """One layer of a decoder: it names values, weights and tensors."""

    decoder: Decoder
    number: int
    prefix: str = ""
    """The beginning of its tensors' names; "": as in transformers."""

    def name(self, part: str) -> str:
        return f"layers.{self.number}.{part}"

    def tensor(self, part: str) -> str:
        """In the checkpoint, without its last part."""
        return f"{self.prefix}.{part}" if self.prefix else f"model.{self.name(part)}"

    def value(self, part: str, width: int, dtype: DType) -> Value:
        return Value(self.name(part), Rows.TOKEN, width, dtype)

    def stream(self, part: str) -> Value:
        """A value of the residual stream."""
        return self.value(part, self.decoder.width, DType.F32)

    def read(self, x: Value, part: str, tensor: str | None) -> Value:
        """The stream as a matrix product takes it: normalised, or merely rounded where no tensor is named."""
        self.decoder.streams.enter(self.number, x)
        dtype = self.decoder.dtype
        if tensor is None and x.dtype is dtype:
            return x
        out = self.value(f"{part}_in", x.width, dtype)
        if tensor is None:
            return self.decoder.add(Cast(x=x, out=out))
        weight = self.norm_weight(f"{part}_norm", tensor, x.width)
        return self.decoder.add(RMSNorm(x=x, weight=weight, eps=self.decoder.eps, out=out))

    def norm_weight(self, part: str, tensor: str, width: int) -> Weight:
        return norm_vector(self.name(part), self.tensor(tensor), width, plus=self.decoder.norm_plus)

    def linear(
        self, x: Value, part: str, tensors: Tensors, out: Value, *, bias: bool, add: Value | None
    ) -> Value:
        """x times the stacked tensors, plus their biases; and, if `add` is given, the residual stream after
        it."""
        weight = stacked_matrix(self.name(part), tensors, x.width, self.decoder.dtype)
        vector = stacked_vector(self.name(f"{part}_bias"), tensors, "bias") if bias else None
        scale = 1.0 if add is None else self.decoder.residual_scale
        return self.decoder.add(Linear(x=x, weight=weight, bias=vector, residual=add, scale=scale, out=out))

    def add_to_stream(  # limits: exempt (a block's last product, with all that may follow it)
        self,
        x: Value,
        part: str,
        tensor: str,
        out: Value,
        *,
        stream: Value,
        bias: bool,
        norm: str | None,
        scalar: str = "",
    ) -> Value:
        """`stream`, plus x times this tensor, normalised if there is a norm; then times a scalar, if any."""
        tensors = [(self.tensor(tensor), stream.width)]
        if norm is None:
            return self.linear(x, part, tensors, out, bias=bias, add=stream)
        raw = self.linear(x, part, tensors, self.stream(f"{part}_sum"), bias=bias, add=None)
        return self.normed(raw, part, norm, out, add=stream, scalar=scalar)

    def normed(
        self, x: Value, part: str, norm: str, out: Value, *, add: Value | None, scalar: str = ""
    ) -> Value:
        """norm(x), plus `add` if it is given; then times a scalar, if any."""
        op = RMSNorm(
            x=x,
            weight=self.norm_weight(f"{part}_norm", norm, x.width),
            eps=self.decoder.eps,
            residual=add,
            scalar=stored_vector(self.name(f"{part}_scalar"), self.tensor(scalar), 1) if scalar else None,
            out=out,
        )
        return self.decoder.add(op)


def embed(decoder: Decoder) -> Value:
    """The residual stream before the first layer."""
    out = Value("embedded", Rows.TOKEN, decoder.width, DType.F32)
    return decoder.add(Embed(table=decoder.table, scale=decoder.embed_scale, out=out))


def attention(
    layer: Layer,
    x: Value,
    heads: HeadShape,
    rope: Rope | None,
    *,
    span: Span = CAUSAL,
    bias: Bias = "",
    head_norm: HeadNorms = "",
    norms: Norms = BEFORE_ATTENTION,
    scores: AttentionScores = PLAIN_SCORES,
    tensors: AttentionTensors = SEPARATE,
) -> Value:
    """x + output(attention(rope(qkv(norm(x))))). `rope`: None without positions; `bias`: which projections
    have one; `head_norm`: heads that are RMS-normalised before they are rotated."""
    layout = rope.layout if rope else RotaryLayout(heads.head_dim, heads.head_dim)
    names = tuple(layer.tensor(f"{tensors.block}.{tensor}") for tensor in tensors.qkv)
    projections = Projections(heads=heads, layout=layout, inputs=x.width, tensors=names, gated=tensors.gated)
    normed = layer.read(x, "attention", norms.before)
    qkv = _project(layer, normed, projections, bias="qkv" in bias)
    norm = _head_norm(layer, projections, head_norm, tensors) if head_norm else None
    attended = attend(layer, qkv, heads, rope, span=span, norm=norm, scores=scores)
    return layer.add_to_stream(
        _let_through(layer, normed, attended, projections) if tensors.gated else attended,
        "output",
        f"{tensors.block}.{tensors.out}",
        layer.stream("middle"),
        stream=x,
        bias="o" in bias,
        norm=norms.after,
    )


def _project(layer: Layer, x: Value, projections: Projections, *, bias: bool) -> Value:
    rows, dtype, name = projections.rows, layer.decoder.dtype, layer.name("qkv")
    weight = Weight(name=name, shape=(rows, x.width), dtype=dtype, pieces=projections.matrix())
    vector = (
        Weight(name=f"{name}_bias", shape=(rows,), dtype=DType.F32, pieces=projections.bias())
        if bias
        else None
    )
    out = layer.value("qkv", rows, DType.F32)
    return layer.decoder.add(Linear(x=x, weight=weight, bias=vector, out=out))


def _let_through(layer: Layer, x: Value, attended: Value, projections: Projections) -> Value:
    """The heads' results, times the sigmoids of their gates."""
    width, dtype = attended.width, layer.decoder.dtype
    weight = Weight(name=layer.name("gate"), shape=(width, x.width), dtype=dtype, pieces=projections.gate())
    gate = layer.decoder.add(Linear(x=x, weight=weight, out=layer.value("gate", width, DType.F32)))
    out = layer.value("let_through", width, dtype)
    return layer.decoder.add(Gated(x=attended, gate=gate, act="sigmoid", out=out))


def attend(
    layer: Layer,
    qkv: Value,
    heads: HeadShape,
    rope: Rope | None,
    *,
    span: Span = CAUSAL,
    norm: HeadNorm | None = None,
    scores: AttentionScores = PLAIN_SCORES,
) -> Value:
    """attention(rope(qkv)), the joined results of all heads; keys and values go to the cache."""
    name, tensor = layer.name("sinks"), layer.tensor(scores.sinks)
    sinks = stored_vector(name, tensor, heads.heads) if scores.sinks else None
    at, out = layer.number, layer.value("q", heads.q_width, layer.decoder.dtype)
    rotary = rope.rotary if rope else None
    turned = RopeAndCache(
        qkv=qkv, layer=at, shape=heads, rotary=rotary, norm=norm, temperature=scores.temperature, out=out
    )
    return layer.decoder.add(
        Attention(
            q=layer.decoder.add(turned),
            layer=layer.number,
            shape=heads,
            scale=heads.head_dim**-0.5 if scores.scale is None else scores.scale,
            span=span,
            softcap=scores.softcap,
            sinks=sinks,
            out=layer.value("attended", heads.out_width, layer.decoder.dtype),
        )
    )


def mlp(
    layer: Layer,
    x: Value,
    width: int,
    *,
    gate: Gate = SILU,
    bias: bool = False,
    norms: Norms = BEFORE_MLP,
    block: str = "mlp",
    parts: tuple[str, str, str] = MLP_PARTS,
    fused: str = "",
    scalar: str = "",
) -> Value:
    """x + down(gate(norm(x)) * up(norm(x))), `width` wide inside, with `gate`'s function on the gate half.
    `block`, `parts`: what the tensors' names begin with and end with; `fused`: the tensor that may hold the
    rows of the gate, then those of up, in place of one each; `scalar`: that of the stream's factor behind the
    block, where there is one.
    """
    before, ends = norms.before, parts[:2]
    gated = gated_mlp(
        layer, x, width, gate=gate, bias=bias, before=before, block=block, parts=ends, fused=fused
    )
    end, down = layer.stream("end"), f"{block}.{parts[2]}"
    return layer.add_to_stream(gated, "down", down, end, stream=x, bias=bias, norm=norms.after, scalar=scalar)


def gated_mlp(
    layer: Layer,
    x: Value,
    width: int,
    *,
    gate: Gate,
    before: str | None,
    bias: bool = False,
    block: str = "mlp",
    parts: tuple[str, ...] = MLP_PARTS[:2],
    fused: str = "",
) -> Value:
    """gate(norm(x)) * up(norm(x)): mlp() up to its last product."""
    normed = layer.read(x, "mlp", before)
    apart = [(layer.tensor(f"{block}.{half}"), width) for half in parts]
    halves = [(layer.tensor(f"{block}.{fused}"), 2 * width)] if fused else apart
    name, dtype = layer.name("gate_up"), layer.decoder.dtype
    weight = stacked_matrix(name, halves, x.width, dtype, WeightLayout.GATED)
    if fused:
        separate = stacked_matrix(name, apart, x.width, dtype, WeightLayout.GATED)
        weight = replace(weight, others=(separate.pieces,))
    vector = stacked_vector(layer.name("gate_up_bias"), halves, "bias", WeightLayout.GATED) if bias else None
    out = layer.value("gated", width, layer.decoder.dtype)
    return layer.decoder.add(GatedLinear(x=normed, weight=weight, bias=vector, gate=gate, out=out))


def head(decoder: Decoder, x: Value, *, tensor: str = "model.norm") -> Linear:
    """Logits of the rows that are asked for: lm_head(norm(x)). tensor: of the norm."""
    decoder.streams.leave(x)
    selected = decoder.add(SelectRows(x=x, out=Value("selected", Rows.OUTPUT, x.width, x.dtype)))
    norm = norm_vector("norm", tensor, x.width, plus=decoder.norm_plus)
    out = Value("final", Rows.OUTPUT, x.width, decoder.dtype)
    normed = decoder.add(RMSNorm(x=selected, weight=norm, eps=decoder.eps, out=out))
    untied = stacked_matrix("lm_head", [("lm_head", decoder.vocab_size)], x.width, decoder.dtype)
    logits = Value("logits", Rows.OUTPUT, decoder.vocab_size, DType.F32)
    op = Linear(
        x=normed,
        weight=decoder.table if decoder.tied else untied,
        scale=decoder.logits_scale,
        softcap=decoder.logits_softcap,
        out=logits,
    )
    decoder.add(op)
    return op


def _head_norm(
    layer: Layer, projections: Projections, kind: HeadNorms, tensors: AttentionTensors
) -> HeadNorm:
    if kind == "bare":
        return HeadNorm(q=None, k=None, eps=layer.decoder.eps)
    whole = kind == "whole"

    def weight(kind: Literal["q", "k"]) -> Weight:
        name, stored = f"{kind}_norm", tensors.q_norm if kind == "q" else tensors.k_norm
        tensor, plus = layer.tensor(f"{tensors.block}.{stored}"), layer.decoder.norm_plus
        pieces = projections.norm(tensor, kind, whole=whole, plus=plus)
        width = sum(piece.height for piece in pieces)
        return Weight(name=layer.name(name), shape=(width,), dtype=DType.F32, pieces=pieces)

    return HeadNorm(q=weight("q"), k=weight("k"), eps=layer.decoder.eps, whole=whole, values=kind == "qkv")
