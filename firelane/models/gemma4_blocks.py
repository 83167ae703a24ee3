"""Blocks that Gemma 4 alone has."""

from __future__ import annotations

from firelane.models.blocks import Layer, gated_mlp
from firelane.models.experts import Experts, add_experts, route
from firelane.program.ops import Gate, RMSNorm
from firelane.program.values import DType, Value, Weight

SCALAR = "layer_scalar"


def mlp_and_experts(layer: Layer, x: Value, width: int, experts: Experts, *, gate: Gate) -> Value:
    """x + norm(norm(mlp(norm(x))) + norm(experts(norm(x)))), times the layer's scalar: a dense block, `width`
    wide inside, beside experts."""
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
    return layer.normed(both, "end", "post_feedforward_layernorm", end, add=x, scalar=SCALAR)


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
