"""Blocks of MLPs without a gate, whose function is relu(x)² (So et al., "Primer", 2021), and of experts that
are such MLPs."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.models.blocks.blocks import Layer
from firelane.models.blocks.expert_config import read_expert_counts, read_groups
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, add_experts, route
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import RELU2, Cast, Gated, RMSNorm
from firelane.program.values import DType, Value


@dataclass(frozen=True, kw_only=True)
class SquaredExperts:
    """Experts beside an MLP that all tokens use."""

    experts: Experts
    shared_width: int
    """Width inside of the MLP of all tokens."""
    block: str
    """The beginning of the tensors' names below the layer."""
    latent: int = 0
    """Width of what the experts read and make, between two products of all tokens; 0: that of the stream."""


def read_squared_experts(config: ConfigReader, names: ExpertNames, block: str) -> SquaredExperts:
    """Scores are sigmoids, and a bias chooses (DeepSeek V3, 2024). Raises UnsupportedModelError."""
    count, picks = read_expert_counts(config, "n_routed_experts", 8, 2)
    routing = Routing(
        score="sigmoid",
        normalise=config.boolean("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=read_groups(config, count, picks),
        bias=f"{block}.gate.e_score_correction_bias",
        in_float32=True,
    )
    config.only("n_shared_experts", 1)
    width = config.integer("moe_intermediate_size")
    return SquaredExperts(
        experts=Experts(count=count, picks=picks, width=width, routing=routing, names=names),
        shared_width=config.integer("moe_shared_expert_intermediate_size"),
        block=block,
        latent=config.integer("moe_latent_size") if config.has("moe_latent_size") else 0,
    )


def squared_mlp(layer: Layer, normed: Value, x: Value, width: int, block: str, *, part: str = "mlp") -> Value:
    """x + down(relu(up(normed))²), `width` wide inside. part: of the values' and weights' names."""
    up = [(layer.tensor(f"{block}.up_proj"), width)]
    inner = layer.linear(
        normed, f"{part}_up", up, layer.value(f"{part}_inner", width, DType.F32), bias=False, add=None
    )
    out = layer.value(f"{part}_squared", width, layer.decoder.dtype)
    squared = layer.decoder.add(Gated(x=inner, gate=inner, act="relu", out=out))
    down = [(layer.tensor(f"{block}.down_proj"), x.width)]
    return layer.linear(squared, f"{part}_down", down, layer.stream(f"{part}_end"), bias=False, add=x)


def squared_moe(layer: Layer, x: Value, how: SquaredExperts) -> Value:
    """x + the MLP of all tokens + the sum of the picked experts times their shares, all of norm(x). The
    router reads norm(x) in float32."""
    norm = how.experts.names.norm
    normed = layer.read(x, "mlp", norm)
    weight = layer.norm_weight("mlp_norm", norm, x.width)
    exact = layer.value("router_in", x.width, DType.F32)
    router_in = layer.decoder.add(RMSNorm(x=x, weight=weight, eps=layer.decoder.eps, out=exact))
    routed = route(layer, router_in, how.experts)
    x = squared_mlp(layer, normed, x, how.shared_width, f"{how.block}.shared_experts", part="shared")
    if not how.latent:
        return add_experts(layer, normed, routed, how.experts, gate=RELU2, add=x, out=layer.stream("end"))
    latent = _latent(layer, normed, how)
    out = layer.value("latent_sum", how.latent, DType.F32)
    total = add_experts(layer, latent, routed, how.experts, gate=RELU2, add=None, out=out)
    tensors = [(layer.tensor(f"{how.block}.fc2_latent_proj"), x.width)]
    rounded = _rounded(layer, total, "latent_out")
    return layer.linear(rounded, "latent_back", tensors, layer.stream("end"), bias=False, add=x)


def _latent(layer: Layer, normed: Value, how: SquaredExperts) -> Value:
    tensors = [(layer.tensor(f"{how.block}.fc1_latent_proj"), how.latent)]
    out = layer.value("latent", how.latent, DType.F32)
    return _rounded(layer, layer.linear(normed, "to_latent", tensors, out, bias=False, add=None), "latent_in")


def _rounded(layer: Layer, x: Value, part: str) -> Value:
    """x as matrix products take it."""
    dtype = layer.decoder.dtype
    return x if x.dtype is dtype else layer.decoder.add(Cast(x=x, out=layer.value(part, x.width, dtype)))
