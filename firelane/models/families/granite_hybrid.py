"""Granite 4 H (IBM, 2025): layers of Mamba-2 and some of attention, with or without positions, an MLP in all
of them, and in the larger models experts beside it; with Granite's factors.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.models.blocks.blocks import AttentionScores, Layer, Norms, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.delta import read_taps
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import NORM, ExpertNames, Experts, Routing, add_experts, route
from firelane.models.blocks.mamba import mamba, read_state_shape, read_step_limits
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Gate
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("GraniteMoeHybridForCausalLM",)
ATTENTION, RECURRENT = ("attention", "full_attention"), ("mamba", "linear_attention")
EXPERTS, MLP = "block_sparse_moe", "shared_mlp"
NAMES = ExpertNames(
    router=f"{EXPERTS}.router.layer",
    experts=EXPERTS,
    fused=("input_linear.weight", "output_linear.weight"),
    transposed=False,
)


def program(config: ConfigReader) -> Program:
    decoder = replace(
        read_decoder(config, name="granite_hybrid"),
        embed_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )
    heads, gate, full = read_heads(config), read_gate(config), _read_full(config)
    turned = config.choice("position_embedding_type", "nope", among=("nope", "rope")) == "rope"
    rope = read_rope(config, head_dim=heads.head_dim)
    shape, limits, taps = (
        read_state_shape(config),
        read_step_limits(config),
        read_taps(config, "mamba_d_conv"),
    )
    conv_bias = config.boolean("mamba_conv_bias", True)
    config.only("mamba_proj_bias", False)
    config.only("attention_bias", False)
    config.only("normalization_function", "rmsnorm")
    scores = AttentionScores(scale=config.number("attention_multiplier", 1.0))
    width = config.integer("shared_intermediate_size", 1024)
    experts = _read_experts(config, decoder.residual_scale)
    x = embed(decoder)
    for layer, has_attention in zip(decoder.layers(len(full)), full, strict=True):
        if has_attention:
            x = attention(layer, x, heads, rope if turned else None, scores=scores)
        else:
            x = mamba(layer, x, shape, taps=taps, bias=conv_bias, limits=limits)
        x = _mlp_and_experts(layer, x, width, experts, gate)
    return decoder.program(head(decoder, x))


def _mlp_and_experts(layer: Layer, x: Value, width: int, experts: Experts | None, gate: Gate) -> Value:
    """x + mlp(norm(x)) + experts(norm(x))."""
    parts, norms = ("gate_proj", "up_proj", "output_linear"), Norms(before=NORM)
    with_mlp = mlp(layer, x, width, gate=gate, norms=norms, block=MLP, parts=parts, fused="input_linear")
    if experts is None:
        return with_mlp
    normed = layer.read(x, "experts", NORM)
    routed, out = route(layer, normed, experts), layer.stream("experts_end")
    return add_experts(layer, normed, routed, experts, gate=gate, add=with_mlp, out=out)


def _read_full(config: ConfigReader) -> list[bool]:
    """Whether each layer has attention."""
    layers = read_layers(config)
    key = "layer_types" if config.has("layer_types") else "layers_block_type"
    types = config.strings(key)
    if len(types) != layers or not {*ATTENTION, *RECURRENT}.issuperset(types):
        raise config.refusal(key, types, f"{layers} entries, mamba or attention, are supported")
    full = [kind in ATTENTION for kind in types]
    if not any(full):
        raise config.refusal(key, types, "at least one layer with attention is needed")
    return full


def _read_experts(config: ConfigReader, scale: float) -> Experts | None:
    """None in dense models. scale: of what they add to the stream."""
    if not config.count("num_local_experts", 8):
        config.ignore("num_experts_per_tok", "intermediate_size", "router_aux_loss_coef")
        return None
    count, picks = read_expert_counts(config, "num_local_experts", 8, 2)
    width, routing = config.integer("intermediate_size"), Routing(scale=scale)
    return Experts(count=count, picks=picks, width=width, routing=routing, names=NAMES)
