"""LFM2 (Liquid AI, 2025), dense or with experts: layers of short convolutions, and some of attention."""

from __future__ import annotations

from dataclasses import replace

from firelane.models.blocks.blocks import Decoder, Norms, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    FULL,
    read_decoder,
    read_heads,
    read_layer_types,
    read_layers,
)
from firelane.models.blocks.delta import ShortConvolution, short_convolution
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, moe
from firelane.models.blocks.projections import AttentionTensors
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Lfm2ForCausalLM", "Lfm2MoeForCausalLM")
ATTENTION = AttentionTensors(q_norm="q_layernorm", k_norm="k_layernorm", out="out_proj")
BEFORE_ATTENTION, BEFORE_MLP = Norms(before="operator_norm"), Norms(before="ffn_norm")
BLOCK, PARTS = "feed_forward", ("w1", "w3", "w2")
NAMES = ExpertNames(
    router=f"{BLOCK}.gate", experts=f"{BLOCK}.experts", gate="w1", up="w3", down="w2", norm="ffn_norm"
)
OF_TRAINING = (
    "block_mlp_init_scale",
    "block_out_init_scale",
    "block_use_xavier_init",
    "conv_use_xavier_init",
)


def program(config: ConfigReader) -> Program:
    decoder, heads, full = _read_decoder(config), read_heads(config), _read_full(config)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=1e6)
    taps = config.integer("conv_L_cache", 3)
    if taps < 2:
        raise config.refusal("conv_L_cache", taps, "at least 2 is needed")
    conv = ShortConvolution(
        taps=taps, inputs="conv.in_proj", conv="conv.conv", out="conv.out_proj", norm="operator_norm"
    )
    experts = _read_experts(config) if "Moe" in config.architecture else None
    dense = config.count("num_dense_layers", 2) if experts else len(full)
    width = config.integer("intermediate_size", 7168) if experts else _read_width(config)
    x = embed(decoder)
    for layer, has_attention in zip(decoder.layers(len(full)), full, strict=True):
        if has_attention:
            x = attention(layer, x, heads, rope, head_norm="each", norms=BEFORE_ATTENTION, tensors=ATTENTION)
        else:
            x = short_convolution(layer, x, conv)
        if experts and layer.number >= dense:
            x = moe(layer, x, experts)
        else:
            x = mlp(layer, x, width, norms=BEFORE_MLP, block=BLOCK, parts=PARTS)
    return decoder.program(head(decoder, x, tensor="model.embedding_norm"))


def _read_decoder(config: ConfigReader) -> Decoder:
    """Refuses by name what the family's configs may say and no published model does."""
    decoder = read_decoder(config, name="lfm2", tied=config.boolean("tie_embedding", True))
    same = {key: decoder.width for key in ("block_dim", "conv_dim", "conv_dim_out")}
    for key, value in {**same, "num_heads": config.integer("num_attention_heads")}.items():
        if config.integer(key, value) != value:
            raise config.refusal(key, config.value(key), f"{value} is needed, as in the rest of the config")
    for key, value in {"conv_bias": False, "block_use_swiglu": True, "use_pos_enc": True}.items():
        if config.boolean(key, value) != value:
            raise config.refusal(key, not value, "this is not supported")
    config.ignore(*OF_TRAINING, "block_norm_eps")
    return replace(decoder, eps=config.number("norm_eps", 1e-5))


def _read_full(config: ConfigReader) -> list[bool]:
    """Whether each layer has attention."""
    layers = read_layers(config)
    types, listed = read_layer_types(config, layers, other="conv"), config.integers("full_attn_idxs")
    full = [kind == FULL for kind in types] or [i in listed for i in range(layers)]
    if not any(full) or (types and listed and listed != [i for i, has in enumerate(full) if has]):
        why = "layers with full attention are needed, the same in layer_types and here"
        raise config.refusal("full_attn_idxs", config.value("full_attn_idxs"), why)
    return full


def _read_width(config: ConfigReader) -> int:
    """Width of the MLP inside: two thirds of the config's, rounded up, unless the config says otherwise."""
    width = config.integer("block_ff_dim", config.integer("intermediate_size", 12288))
    multiple = config.integer("block_multiple_of", 256)
    factor = config.number("block_ffn_dim_multiplier", 1.0)
    if not config.boolean("block_auto_adjust_ff_dim", True):
        return width
    return -(-int(factor * int(2 * width / 3)) // multiple) * multiple


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_experts", 32, 4)
    routing = Routing(
        score="sigmoid",
        normalise=config.boolean("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        bias=f"{BLOCK}.expert_bias" if config.boolean("use_expert_bias", True) else "",
    )
    width = config.integer("moe_intermediate_size", 1792)
    return Experts(count=count, picks=picks, width=width, routing=routing, names=NAMES)
