"""Blocks of decoders with experts: the part of a layer that is a sum of some of many gated MLPs.

The experts of a layer are one weight for each product, [experts, n, k], whether the checkpoint has a tensor
for each expert or one for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from firelane.models.blocks import Layer
from firelane.program.ops import (
    SILU,
    ExpertGatedLinear,
    ExpertLinear,
    Gate,
    GatedLinear,
    Groups,
    Linear,
    RMSNorm,
    Route,
)
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, Value, Weight

NORM = "post_attention_layernorm"
Recipe = tuple[Piece, ...]
Half = Literal["gate", "up", "down"]


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The way from tokens to shares: see Route. `bias`: the tensor that is added to the scores for the
    choice, below the layer, of one axis or of two, the first of which is one long. in_float32: whether the
    router is stored and multiplied so in models of bf16, too."""

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: Groups | None = None
    bias: str = ""
    bias_axes: Literal[1, 2] = 1
    in_float32: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """Names of the tensors of a layer's experts in the checkpoint, below the layer."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"

    def recipes(
        self, layer: Layer, count: int, halves: tuple[Half, ...], shape: tuple[int, int]
    ) -> tuple[Recipe, ...]:
        """Of `halves` stacked, of `shape` each, for all experts: a tensor for each; all in one, as they are
        multiplied; all in one, transposed."""
        block, (n, k) = layer.tensor(self.experts), shape
        parts = [getattr(self, half) for half in halves]
        each = tuple(
            Piece(tensor=f"{block}.{e}.{part}.weight", shape=shape) for e in range(count) for part in parts
        )
        name, rows = f"{block}.{'_'.join(halves)}_proj", len(halves) * n
        fused = Piece(tensor=name, shape=(count, rows, k))
        transposed = Piece(tensor=name, shape=(count, k, rows), order=(0, 2, 1))
        return each, (fused,), (transposed,)


@dataclass(frozen=True, kw_only=True)
class Shared:
    """An expert of all tokens, `width` wide inside; with a `gate`, its share is the sigmoid of that product
    with the token."""

    width: int
    tensor: str
    gate: str = ""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Experts of a layer, `width` wide inside, of which each token uses `picks`."""

    count: int
    picks: int
    width: int
    routing: Routing = Routing()
    names: ExpertNames = ExpertNames()
    shared: Shared | None = None


def moe(layer: Layer, x: Value, experts: Experts, *, gate: Gate = SILU) -> Value:
    """x + the shared expert, if there is one, + the sum of the picked experts times their shares, all of
    norm(x)."""
    normed, names = layer.read(x, "mlp", NORM), experts.names
    picks, shares = _route(layer, _routed(layer, x, normed, experts), "router", names.router, experts)
    if experts.shared is not None:
        x = _shared(layer, normed, x, experts.shared, gate)
    gate_up = names.recipes(layer, experts.count, ("gate", "up"), (experts.width, x.width))
    down = names.recipes(layer, experts.count, ("down",), (x.width, experts.width))
    gated = _gated(layer, normed, picks, "experts", gate_up, experts.width, gate)
    return _down(layer, gated, (picks, shares), "experts", down, x, "end")


def _routed(layer: Layer, x: Value, normed: Value, experts: Experts) -> Value:
    """The input of the router: norm(x), in float32 where it is so."""
    if not experts.routing.in_float32 or normed.dtype is DType.F32:
        return normed
    weight = layer.norm_weight("mlp_norm", NORM, x.width)
    out = layer.value("router_in", x.width, DType.F32)
    return layer.decoder.add(RMSNorm(x=x, weight=weight, eps=layer.decoder.eps, out=out))


def _shared(layer: Layer, normed: Value, x: Value, shared: Shared, gate: Gate) -> Value:
    """x + the shared expert."""
    parts = [layer.tensor(f"{shared.tensor}.{p}_proj.weight") for p in ("gate", "up", "down")]
    halves, down = _stacked(parts[:2], (shared.width, x.width)), _stacked(parts[2:], (x.width, shared.width))
    if not shared.gate:
        return _plain(layer, normed, x, halves, down, gate)
    one = Experts(count=1, picks=1, width=shared.width, routing=Routing(score="sigmoid", normalise=False))
    picks, shares = _route(layer, normed, "shared_gate", shared.gate, one)
    gated = _gated(layer, normed, picks, "shared", (halves,), shared.width, gate)
    return _down(layer, gated, (picks, shares), "shared", (down,), x, "with_shared")


def _plain(layer: Layer, normed: Value, x: Value, halves: Recipe, down: Recipe, gate: Gate) -> Value:
    dtype, width = layer.decoder.dtype, halves[0].height
    shape, layout = (2 * width, x.width), WeightLayout.GATED
    name = layer.name("shared_gate_up")
    weight = Weight(name=name, shape=shape, dtype=dtype, pieces=halves, layout=layout)
    out = layer.value("shared_gated", width, dtype)
    gated = layer.decoder.add(GatedLinear(x=normed, weight=weight, gate=gate, out=out))
    weight = Weight(name=layer.name("shared_down"), shape=(x.width, width), dtype=dtype, pieces=down)
    return layer.decoder.add(Linear(x=gated, weight=weight, residual=x, out=layer.stream("with_shared")))


def _route(layer: Layer, x: Value, part: str, tensor: str, experts: Experts) -> tuple[Value, Value]:
    """picks and shares."""
    how, count, name = experts.routing, experts.count, layer.name(part)
    weight = Weight.stored(name, (count, x.width), x.dtype, f"{layer.tensor(tensor)}.weight")
    logits = layer.value(f"{part}_logits", count, DType.F32)
    route = Route(
        logits=layer.decoder.add(Linear(x=x, weight=weight, out=logits)),
        bias=_choice_bias(layer, f"{name}_bias", experts) if how.bias else None,
        score=how.score,
        groups=how.groups,
        normalise=how.normalise,
        scale=how.scale,
        picks=layer.value(f"{part}_picks", experts.picks, DType.I32),
        shares=layer.value(f"{part}_shares", experts.picks, DType.F32),
    )
    layer.decoder.ops.append(route)
    return route.picks, route.shares


def _choice_bias(layer: Layer, name: str, experts: Experts) -> Weight:
    how, count = experts.routing, experts.count
    stored, view = ((count,), ()) if how.bias_axes == 1 else ((1, count), (count,))
    piece = Piece(tensor=layer.tensor(how.bias), shape=stored, view=view)
    return Weight(name=name, shape=(count,), dtype=DType.F32, pieces=(piece,))


def _gated(
    layer: Layer,
    x: Value,
    picks: Value,
    part: str,
    recipes: tuple[Recipe, ...],
    width: int,
    gate: Gate,
) -> Value:
    name, shape = layer.name(f"{part}_gate_up"), (2 * width, x.width)
    weight = _weight(name, shape, layer.decoder.dtype, recipes, WeightLayout.GATED_EXPERTS)
    out = layer.value(f"{part}_gated", picks.width * width, layer.decoder.dtype)
    return layer.decoder.add(ExpertGatedLinear(x=x, picks=picks, weight=weight, gate=gate, out=out))


def _down(
    layer: Layer,
    x: Value,
    route: tuple[Value, Value],
    part: str,
    recipes: tuple[Recipe, ...],
    residual: Value,
    end: str,
) -> Value:
    picks, shares = route
    name, shape = layer.name(f"{part}_down"), (residual.width, x.width // picks.width)
    weight = _weight(name, shape, layer.decoder.dtype, recipes, WeightLayout.EXPERTS)
    out = layer.stream(end)
    op = ExpertLinear(x=x, picks=picks, shares=shares, weight=weight, residual=residual, out=out)
    return layer.decoder.add(op)


def _weight(
    name: str, shape: tuple[int, int], dtype: DType, recipes: tuple[Recipe, ...], layout: WeightLayout
) -> Weight:
    """A matrix of `shape` for each expert."""
    experts = sum(piece.height for piece in recipes[0]) // shape[0]
    return Weight(
        name=name,
        shape=(experts, *shape),
        dtype=dtype,
        pieces=recipes[0],
        layout=layout,
        others=recipes[1:],
    )


def _stacked(tensors: list[str], shape: tuple[int, int]) -> Recipe:
    return tuple(Piece(tensor=tensor, shape=shape) for tensor in tensors)
