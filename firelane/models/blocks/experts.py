"""Blocks of decoders with experts: the part of a layer that is a sum of some of many gated MLPs.

The experts of a layer are one weight for each product, [experts, n, k], whether the checkpoint has a tensor
for each expert or one for all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from firelane.models.blocks.blocks import Layer
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
GATE_UP: tuple[Half, ...] = ("gate", "up")
UP: tuple[Half, ...] = ("up",)
DOWN: tuple[Half, ...] = ("down",)


class Routed(NamedTuple):
    """Which experts each token uses, and what each of them counts for; None: one."""

    picks: Value
    shares: Value | None


class Matrices(NamedTuple):
    """Recipes of a matrix for each expert, and those of a bias for each, () for none."""

    recipes: tuple[Recipe, ...]
    bias: tuple[Recipe, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Routing:
    """The way from tokens to shares: see Route. `bias`: the tensor that is added to the scores for the
    choice, below the layer, of one axis or of two, the first of which is one long. logit_bias: whether the
    router's product has a bias. `factors`: the tensor of a factor for each expert's share. logits_scale: of
    the router's product. in_float32: whether the router is stored and multiplied so in models of bf16, too.
    """

    score: Literal["softmax", "sigmoid"] = "softmax"
    normalise: bool = True
    scale: float = 1.0
    groups: Groups | None = None
    bias: str = ""
    bias_axes: Literal[1, 2] = 1
    logit_bias: bool = False
    factors: str = ""
    logits_scale: float = 1.0
    in_float32: bool = False


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """Names of the tensors of a layer's experts in the checkpoint, below the layer. transposed: whether one
    tensor for all is [experts, k, n], where there is not one for each expert; None: shapes tell. interleaved:
    of gate and up in one transposed tensor, whether their columns alternate. fused: the tensors for all, of
    gate and up, or up alone, and of down."""

    router: str = "mlp.gate"
    experts: str = "mlp.experts"
    gate: str = "gate_proj"
    up: str = "up_proj"
    down: str = "down_proj"
    fused: tuple[str, str] = ("gate_up_proj", "down_proj")
    norm: str = NORM
    transposed: bool | None = None
    interleaved: bool = False

    def recipes(
        self, layer: Layer, count: int, halves: tuple[Half, ...], shape: tuple[int, int]
    ) -> tuple[Recipe, ...]:
        """Recipes of `halves` stacked, of `shape` each, for all experts: a tensor for each; all in one, as
        they are multiplied; all in one, transposed."""
        block, (n, k) = layer.tensor(self.experts), shape
        parts = [getattr(self, half) for half in halves]
        each = tuple(
            Piece(tensor=f"{block}.{e}.{part}.weight", shape=shape) for e in range(count) for part in parts
        )
        name, rows = f"{block}.{self.fused[halves == DOWN]}", len(halves) * n
        fused = Piece(tensor=name, shape=(count, rows, k))
        view, order = ((count, k, n, 2), (0, 3, 2, 1)) if self._alternates(halves) else ((), (0, 2, 1))
        transposed = Piece(tensor=name, shape=(count, k, rows), view=view, order=order)
        if self.transposed is None:
            return each, (fused,), (transposed,)
        return ((transposed,) if self.transposed else (fused,)), each

    def bias(self, layer: Layer, count: int, halves: tuple[Half, ...], rows: int) -> tuple[Recipe, ...]:
        """Recipes of the biases of `halves` stacked, `rows` of each, for all experts: one tensor, or one for
        each half."""
        block, size = layer.tensor(self.experts), len(halves) * rows
        name, shape = f"{block}.{'_'.join(halves)}_proj_bias", (count, size)
        if len(halves) == 1:
            return ((Piece(tensor=name, shape=shape, view=(count, size, 1)),),)
        view, order = ((count, rows, 2, 1), (0, 2, 1, 3)) if self.interleaved else ((count, size, 1), ())
        apart = tuple(
            Piece(
                tensor=f"{block}.{half}_proj_bias",
                shape=(count, rows),
                view=(count, rows, 1),
                take=(range(e, e + 1),),
            )
            for e in range(count)
            for half in halves
        )
        return (Piece(tensor=name, shape=shape, view=view, order=order),), apart

    def _alternates(self, halves: tuple[Half, ...]) -> bool:
        return self.interleaved and len(halves) > 1


@dataclass(frozen=True, kw_only=True)
class SharedExpert:
    """An expert of all tokens, `width` wide inside; with a `gate`, its share is the sigmoid of that product
    with the token."""

    width: int
    tensor: str
    gate: str = ""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """Experts of a layer, `width` wide inside, of which each token uses `picks`. bias: whether each has some.
    shares_first: whether shares multiply what an expert reads, in place of what it makes."""

    count: int
    picks: int
    width: int
    routing: Routing = Routing()
    names: ExpertNames = ExpertNames()
    shared: SharedExpert | None = None
    bias: bool = False
    shares_first: bool = False


def moe(layer: Layer, x: Value, experts: Experts, *, gate: Gate = SILU) -> Value:
    """x + the shared expert, if there is one, + the sum of the picked experts times their shares, all of
    norm(x)."""
    normed = layer.read(x, "mlp", experts.names.norm)
    routed = route(layer, _routed(layer, x, normed, experts), experts)
    if experts.shared is not None:
        x = _shared(layer, normed, x, experts.shared, gate)
    return add_experts(layer, normed, routed, experts, gate=gate, add=x, out=layer.stream("end"))


def route(layer: Layer, x: Value, experts: Experts) -> Routed:
    """The picked experts of x, and their shares."""
    return _route(layer, x, "router", experts.names.router, experts)


def add_experts(
    layer: Layer, x: Value, routed: Routed, experts: Experts, *, gate: Gate, add: Value | None, out: Value
) -> Value:
    """The sum of the picked experts of x times their shares, and of `add` if it is given."""
    names, count, width = experts.names, experts.count, experts.width
    inner = GATE_UP if gate.halves == 2 else UP
    gate_up = Matrices(
        names.recipes(layer, count, inner, (width, x.width)),
        names.bias(layer, count, inner, width) if experts.bias else (),
    )
    down = Matrices(
        names.recipes(layer, count, DOWN, (out.width, width)),
        names.bias(layer, count, DOWN, out.width) if experts.bias else (),
    )
    before, behind = (routed.shares, None) if experts.shares_first else (None, routed.shares)
    gated = _gated(layer, x, Routed(routed.picks, before), "experts", gate_up, width, gate)
    return _down(layer, gated, Routed(routed.picks, behind), "experts", down, add, out)


def _routed(layer: Layer, x: Value, normed: Value, experts: Experts) -> Value:
    """The input of the router: norm(x), in float32 where it is so."""
    if not experts.routing.in_float32 or normed.dtype is DType.F32:
        return normed
    weight = layer.norm_weight("mlp_norm", experts.names.norm, x.width)
    out = layer.value("router_in", x.width, DType.F32)
    return layer.decoder.add(RMSNorm(x=x, weight=weight, eps=layer.decoder.eps, out=out))


def _shared(layer: Layer, normed: Value, x: Value, shared: SharedExpert, gate: Gate) -> Value:
    """x + the shared expert."""
    parts = [layer.tensor(f"{shared.tensor}.{p}_proj.weight") for p in ("gate", "up", "down")]
    halves, down = _stacked(parts[:2], (shared.width, x.width)), _stacked(parts[2:], (x.width, shared.width))
    if not shared.gate:
        return _plain(layer, normed, x, halves, down, gate)
    one = Experts(count=1, picks=1, width=shared.width, routing=Routing(score="sigmoid", normalise=False))
    routed = _route(layer, normed, "shared_gate", shared.gate, one)
    gated = _gated(
        layer, normed, Routed(routed.picks, None), "shared", Matrices((halves,)), shared.width, gate
    )
    return _down(layer, gated, routed, "shared", Matrices((down,)), x, layer.stream("with_shared"))


def _plain(layer: Layer, normed: Value, x: Value, halves: Recipe, down: Recipe, gate: Gate) -> Value:
    dtype, width = layer.decoder.dtype, halves[0].height
    shape, layout = (2 * width, x.width), WeightLayout.GATED
    name = layer.name("shared_gate_up")
    weight = Weight(name=name, shape=shape, dtype=dtype, pieces=halves, layout=layout)
    out = layer.value("shared_gated", width, dtype)
    gated = layer.decoder.add(GatedLinear(x=normed, weight=weight, gate=gate, out=out))
    weight = Weight(name=layer.name("shared_down"), shape=(x.width, width), dtype=dtype, pieces=down)
    return layer.decoder.add(Linear(x=gated, weight=weight, residual=x, out=layer.stream("with_shared")))


def _route(layer: Layer, x: Value, part: str, tensor: str, experts: Experts) -> Routed:
    how, count, name = experts.routing, experts.count, layer.name(part)
    weight = Weight.stored(name, (count, x.width), x.dtype, f"{layer.tensor(tensor)}.weight")
    logits = Linear(
        x=x,
        weight=weight,
        bias=_vector(layer, f"{name}_logit_bias", f"{tensor}.bias", count) if how.logit_bias else None,
        scale=how.logits_scale,
        out=layer.value(f"{part}_logits", count, DType.F32),
    )
    op = Route(
        logits=layer.decoder.add(logits),
        bias=_choice_bias(layer, f"{name}_bias", experts) if how.bias else None,
        score=how.score,
        groups=how.groups,
        normalise=how.normalise,
        scale=how.scale,
        factors=_vector(layer, f"{name}_factors", how.factors, count) if how.factors else None,
        picks=layer.value(f"{part}_picks", experts.picks, DType.I32),
        shares=layer.value(f"{part}_shares", experts.picks, DType.F32),
    )
    layer.decoder.ops.append(op)
    return Routed(op.picks, op.shares)


def _choice_bias(layer: Layer, name: str, experts: Experts) -> Weight:
    how, count = experts.routing, experts.count
    stored, view = ((count,), ()) if how.bias_axes == 1 else ((1, count), (count,))
    piece = Piece(tensor=layer.tensor(how.bias), shape=stored, view=view)
    return Weight(name=name, shape=(count,), dtype=DType.F32, pieces=(piece,))


def _vector(layer: Layer, name: str, tensor: str, size: int) -> Weight:
    return Weight.stored(name, (size,), DType.F32, layer.tensor(tensor))


def _gated(
    layer: Layer, x: Value, routed: Routed, part: str, matrices: Matrices, width: int, gate: Gate
) -> Value:
    layout = WeightLayout.GATED_EXPERTS if gate.halves == 2 else WeightLayout.EXPERTS
    name, rows = layer.name(f"{part}_gate_up"), gate.halves * width
    picks, shares = routed
    op = ExpertGatedLinear(
        x=x,
        picks=picks,
        weight=_weight(name, (rows, x.width), layer.decoder.dtype, matrices.recipes, layout),
        bias=_bias(name, rows, matrices.bias, layout),
        gate=gate,
        shares=shares,
        out=layer.value(f"{part}_gated", picks.width * width, layer.decoder.dtype),
    )
    return layer.decoder.add(op)


def _down(
    layer: Layer, x: Value, routed: Routed, part: str, matrices: Matrices, add: Value | None, out: Value
) -> Value:
    name, layout = layer.name(f"{part}_down"), WeightLayout.EXPERTS
    picks, shares = routed
    shape = (out.width, x.width // picks.width)
    op = ExpertLinear(
        x=x,
        picks=picks,
        shares=shares,
        weight=_weight(name, shape, layer.decoder.dtype, matrices.recipes, layout),
        bias=_bias(name, out.width, matrices.bias, layout),
        residual=add,
        out=out,
    )
    return layer.decoder.add(op)


def _bias(name: str, rows: int, recipes: tuple[Recipe, ...], layout: WeightLayout) -> Weight | None:
    """A column of `rows` for each expert."""
    return _weight(f"{name}_bias", (rows, 1), DType.F32, recipes, layout) if recipes else None


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
