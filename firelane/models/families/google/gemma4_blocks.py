"""Blocks that Gemma 4 alone has: experts beside an MLP, attention to another layer's keys, and inputs of each
layer."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.contract.span import Span
from firelane.models.blocks.blocks import Decoder, Layer, gated_mlp
from firelane.models.blocks.decoder_config import read_pattern
from firelane.models.blocks.experts import Experts, add_experts, route
from firelane.models.blocks.rope import Rope
from firelane.models.config.reader import ConfigReader
from firelane.models.families.google.gemma import AROUND_ATTENTION, rounded_root
from firelane.program.ops import (
    Attention,
    Cast,
    Embed,
    Gate,
    Gated,
    HeadNorm,
    HeadShape,
    Linear,
    RMSNorm,
    RopeAndCache,
)
from firelane.program.recipes import Piece
from firelane.program.values import DType, Rows, Value, Weight

SCALAR = "layer_scalar"


def mlp_and_experts(
    layer: Layer, x: Value, width: int, experts: Experts, *, gate: Gate, scalar: str
) -> Value:
    """x + norm(norm(mlp(norm(x))) + norm(experts(norm(x)))), times the layer's scalar, if there is a name: an
    MLP, `width` wide inside, beside experts."""
    routed = route(layer, _routed(layer, x), experts)
    dense = layer.normed(
        _mlp(layer, x, width, gate), "dense", "post_feedforward_layernorm_1", layer.stream("dense"), add=None
    )
    found = add_experts(
        layer,
        layer.read(x, "experts", "pre_feedforward_layernorm_2"),
        routed,
        experts,
        gate=gate,
        add=None,
        out=layer.stream("experts_sum"),
    )
    both = layer.normed(found, "experts_sum", "post_feedforward_layernorm_2", layer.stream("both"), add=dense)
    end = layer.stream("end")
    return layer.normed(both, "end", "post_feedforward_layernorm", end, add=x, scalar=scalar)


def _mlp(layer: Layer, x: Value, width: int, gate: Gate) -> Value:
    gated = gated_mlp(layer, x, width, gate=gate, before="pre_feedforward_layernorm")
    tensors, out = [(layer.tensor("mlp.down_proj"), x.width)], layer.stream("down_sum")
    return layer.linear(gated, "down", tensors, out, bias=False, add=None)


def _routed(layer: Layer, x: Value) -> Value:
    """The input of the router: x, normalised with weights of its own."""
    tensor = layer.tensor("router.scale")
    weight = Weight.stored(layer.name("router_norm"), (x.width,), DType.F32, tensor)
    out = layer.value("router_in", x.width, layer.decoder.dtype)
    return layer.decoder.add(RMSNorm(x=x, weight=weight, eps=layer.decoder.eps, out=out))


def attention_to(layer: Layer, x: Value, heads: HeadShape, rope: Rope, span: Span, source: int) -> Value:
    """x + norm(output(attention(rope(norm(q(norm(x))))))), with the keys and values of layer `source`."""
    normed, dtype = layer.read(x, "attention", AROUND_ATTENTION.before), layer.decoder.dtype
    name, tensor = layer.name("q_proj"), layer.tensor("self_attn.q_proj.weight")
    pieces = rope.layout.matrix(tensor, heads.heads, x.width)
    weight = Weight(name=name, shape=(heads.q_width, x.width), dtype=dtype, pieces=pieces)
    queries = Linear(x=normed, weight=weight, out=layer.value("q_raw", heads.q_width, DType.F32))
    pieces = rope.layout.vector(layer.tensor("self_attn.q_norm.weight"))
    norm = Weight(name=layer.name("q_norm"), shape=(heads.head_dim,), dtype=DType.F32, pieces=pieces)
    turned = RopeAndCache(
        qkv=layer.decoder.add(queries),
        layer=source,
        shape=heads,
        rotary=rope.rotary,
        norm=HeadNorm(q=norm, k=None, eps=layer.decoder.eps),
        keys=False,
        out=layer.value("q", heads.q_width, dtype),
    )
    out = layer.value("attended", heads.out_width, dtype)
    attend = Attention(q=layer.decoder.add(turned), layer=source, shape=heads, scale=1.0, span=span, out=out)
    return layer.add_to_stream(
        layer.decoder.add(attend),
        "output",
        "self_attn.o_proj",
        layer.stream("middle"),
        stream=x,
        bias=False,
        norm=AROUND_ATTENTION.after,
    )


@dataclass(frozen=True, kw_only=True)
class LayerInputs:
    """Inputs of each layer beside the stream, `width` wide, by the token: a row of a table, plus its
    embedding, projected and normalised. tokens: rows of the table."""

    width: int
    tokens: int
    layers: int

    def begin(self, decoder: Decoder, embedded: Value) -> Value:
        """The embedding, as all layers' projections take it."""
        out = Value("layer_inputs_in", Rows.TOKEN, embedded.width, decoder.dtype)
        return embedded if out.dtype is embedded.dtype else decoder.add(Cast(x=embedded, out=out))

    def add(self, layer: Layer, x: Value, embedded: Value, act: Gate) -> Value:
        """(x + norm(project(act(gate(x)) * inputs))), times the layer's scalar."""
        dtype = layer.decoder.dtype
        read = layer.read(x, "layer_gate", None)
        gate = self._linear(layer, read, "per_layer_input_gate", self.width)
        made = layer.value("layer_inputs", self.width, dtype)
        assert act.kind != "relu2", "inputs of layers have a gate"
        gated = Gated(x=self._inputs(layer, embedded), gate=gate, act=act.kind, out=made)
        back = self._linear(layer, layer.decoder.add(gated), "per_layer_projection", x.width, scale=0.5**0.5)
        end = layer.stream("end_with_inputs")
        return layer.normed(back, "layer_inputs", "post_per_layer_input_norm", end, add=x, scalar=SCALAR)

    def _inputs(self, layer: Layer, embedded: Value) -> Value:
        """sqrt(2) times the inputs: the next product makes up for it."""
        decoder, own = layer.decoder, range(layer.number * self.width, (layer.number + 1) * self.width)
        rows = self.layers * self.width
        tensor, shape = "model.embed_tokens_per_layer.weight", (self.tokens, rows)
        table = _part(layer, "inputs_table", Piece(tensor=tensor, shape=shape, columns=own))
        token = layer.value("token_inputs", self.width, DType.F32)
        scale = rounded_root(self.width, decoder.dtype)
        looked_up = decoder.add(Embed(table=table, scale=scale, out=token))
        tensor, shape = "model.per_layer_model_projection.weight", (rows, embedded.width)
        weight = _part(layer, "inputs_proj", Piece(tensor=tensor, shape=shape, rows=own))
        out = layer.value("projected_inputs", self.width, DType.F32)
        projected = Linear(x=embedded, weight=weight, scale=embedded.width**-0.5, out=out)
        norm = Weight.stored(
            "inputs_norm", (self.width,), DType.F32, "model.per_layer_projection_norm.weight"
        )
        out = layer.value("inputs", self.width, DType.F32)
        x, eps = decoder.add(projected), decoder.eps
        return decoder.add(RMSNorm(x=x, weight=norm, eps=eps, residual=looked_up, out=out))

    def _linear(self, layer: Layer, x: Value, tensor: str, width: int, *, scale: float = 1.0) -> Value:
        name = f"{layer.tensor(tensor)}.weight"
        weight = Weight.stored(layer.name(tensor), (width, x.width), layer.decoder.dtype, name)
        out = layer.value(f"{tensor}_out", width, DType.F32)
        return layer.decoder.add(Linear(x=x, weight=weight, scale=scale, out=out))


def _part(layer: Layer, name: str, piece: Piece) -> Weight:
    """A matrix that is a part of a tensor."""
    shape, dtype = (piece.height, piece.width), layer.decoder.dtype
    return Weight(name=layer.name(name), shape=shape, dtype=dtype, pieces=(piece,))


def read_layer_inputs(config: ConfigReader, layers: int) -> LayerInputs | None:
    width, tokens = config.count("hidden_size_per_layer_input", 256), "vocab_size_per_layer_input"
    if not width:
        config.ignore(tokens)
        return None
    count, vocabulary = config.integer(tokens, 262144), config.integer("vocab_size")
    if count < vocabulary:
        raise config.refusal(tokens, count, f"vocab_size = {vocabulary} tokens need a row each")
    return LayerInputs(width=width, tokens=count, layers=layers)


def read_sources(config: ConfigReader, pattern: tuple[bool, ...]) -> dict[int, int]:
    """By layer, of those without keys of their own, the last layer of their kind that has some."""
    key = "num_kv_shared_layers"
    first = len(pattern) - config.count(key, 0)
    own = {slides: number for number, slides in enumerate(pattern[: max(first, 0)])}
    if not own or any(slides not in own for slides in pattern):
        why = f"of {len(pattern)} layers, some of each kind need keys of their own"
        raise config.refusal(key, config.count(key, 0), why)
    return {number: own[pattern[number]] for number in range(first, len(pattern))}


def read_full_heads(config: ConfigReader, sliding: HeadShape) -> tuple[int, int]:
    """Their size and the number of key heads, in keys of their own or, as transformers 5 writes it, said for
    each full layer."""
    layers = config.section("per_layer_config")
    if layers is None:
        kv_heads = config.integer("num_global_key_value_heads", sliding.kv_heads)
        kv_heads = kv_heads if config.boolean("attention_k_eq_v", False) else sliding.kv_heads
        return config.integer("global_head_dim", 512), kv_heads
    pattern = (*read_pattern(config, default=6)[:-1], False)
    full, named = [n for n, slides in enumerate(pattern) if not slides], layers.objects
    own = [layers.section(name) for name in named]
    sizes = {(o.integer("head_dim"), o.integer("num_key_value_heads", sliding.kv_heads)) for o in own if o}
    if sorted(name.lstrip("0") or "0" for name in named) != sorted(map(str, full)) or len(sizes) != 1:
        why = f"one size of heads for all full layers, {full}, is supported"
        raise config.refusal("per_layer_config", "...", why)
    return sizes.pop()
