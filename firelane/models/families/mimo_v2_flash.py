"""MiMo-V2-Flash (Xiaomi, 2025): five layers of windows, with sinks and twice as many key heads, to a full
one; values narrower than keys; experts chosen with a bias behind a dense layer."""

from __future__ import annotations

from dataclasses import replace

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import PLAIN_SCORES, AttentionScores, Decoder, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    FULL,
    SLIDING,
    read_decoder,
    read_gate,
    read_heads,
    read_layer_types,
    read_layers,
)
from firelane.models.blocks.expert_config import read_deepseek_routing, read_mlp_layer_types
from firelane.models.blocks.experts import Experts, moe
from firelane.models.blocks.rope import Rope, plain_rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import HeadShape
from firelane.program.program import Program

ARCHITECTURES = ("MiMoV2FlashForCausalLM",)
SINKS = AttentionScores(sinks="self_attn.attention_sink_bias")
PARTIAL = 0.334


def program(config: ConfigReader) -> Program:
    decoder, gate, slides = _read_decoder(config), read_gate(config), _read_pattern(config)
    full, windowed = _read_heads(config)
    ropes, window = _read_ropes(config, full.head_dim), Window(_read_window(config))
    experts, sparse = _read_experts(config), _read_sparse_layers(config, len(slides))
    width, bias = config.integer("intermediate_size"), config.boolean("attention_bias", False)
    values = config.number_or_none("attention_value_scale", 0.707) or 1.0
    x = embed(decoder)
    for layer, is_windowed, is_sparse in zip(decoder.layers(len(slides)), slides, sparse, strict=True):
        x = attention(
            replace(layer, decoder=replace(decoder, residual_scale=values)),  # a factor of all that heads add
            x,
            windowed if is_windowed else full,
            ropes[is_windowed],
            span=window if is_windowed else CAUSAL,
            bias="qkv" if bias else "",
            scores=SINKS if is_windowed else PLAIN_SCORES,
        )
        x = moe(layer, x, experts, gate=gate) if is_sparse else mlp(layer, x, width, gate=gate)
    return replace(decoder.program(head(decoder, x)), left_out=("model.mtp.",))


def _read_decoder(config: ConfigReader) -> Decoder:
    decoder, key = read_decoder(config, name="mimo_v2_flash"), "layernorm_epsilon"
    eps = config.number("rms_norm_eps", config.number(key, 1e-5))
    if config.number(key, eps) != eps:
        raise config.refusal(key, config.value(key), f"rms_norm_eps says {eps}")
    return replace(decoder, eps=eps)


def _read_heads(config: ConfigReader) -> tuple[HeadShape, HeadShape]:
    """The heads of full layers, and those of layers with a window."""
    heads = replace(read_heads(config, default_head_dim=192), value_dim=config.integer("v_head_dim", 128))
    same = {"num_attention_heads": heads.heads, "head_dim": heads.head_dim, "v_head_dim": heads.v_dim}
    for key, value in same.items():
        config.only(f"swa_{key}", value)
    key = "swa_num_key_value_heads"
    kv_heads = config.integer(key, 2 * heads.kv_heads)
    if heads.heads % kv_heads:
        raise config.refusal(key, kv_heads, f"it has to divide num_attention_heads = {heads.heads}")
    return heads, replace(heads, kv_heads=kv_heads)


def _read_pattern(config: ConfigReader) -> list[bool]:
    """Whether each layer has a window."""
    layers, key = read_layers(config), "hybrid_layer_pattern"
    types = read_layer_types(config, layers)
    turns = [number > 0 and (number + 1) % 6 != 0 for number in range(layers)]
    said = config.flags(key) or [kind == SLIDING for kind in types] or turns
    if len(said) != layers or (types and types != [SLIDING if slides else FULL for slides in said]):
        raise config.refusal(
            key, said, f"{layers} entries, as in layer_types where both are there, are needed"
        )
    return said


def _read_window(config: ConfigReader) -> int:
    """Positions that a token sees, itself included, as transformers and SGLang count them: the published size
    leaves the token out."""
    config.ignore("attention_chunk_size", "sliding_window")
    config.only("add_swa_attention_sink_bias", True)
    config.only("add_full_attention_sink_bias", False)
    if config.has("sliding_window_size"):
        return config.integer("sliding_window_size") + 1
    return config.integer("sliding_window", 129)


def _read_ropes(config: ConfigReader, head_dim: int) -> dict[bool, Rope]:
    """Rotations of full layers and of those with a window."""
    full = read_rope(config, head_dim=head_dim, layer_type=FULL, default_theta=5e6, partial=PARTIAL)
    theta = config.number("swa_rope_theta", 1e4)
    if config.section("rope_parameters") is None:
        return {False: full, True: plain_rope(theta, head_dim=head_dim, rotated=full.layout.rotated)}
    windowed = read_rope(config, head_dim=head_dim, layer_type=SLIDING, default_theta=theta, partial=PARTIAL)
    return {False: full, True: windowed}


def _read_experts(config: ConfigReader) -> Experts:
    config.only("n_shared_experts", 0)
    routing, count, picks = read_deepseek_routing(config, 256, 8, in_float32=True)
    return Experts(count=count, picks=picks, width=config.integer("moe_intermediate_size"), routing=routing)


def _read_sparse_layers(config: ConfigReader, layers: int) -> list[bool]:
    key = "moe_layer_freq"
    said = config.flags(key) or read_mlp_layer_types(config, layers, dense=1)
    if len(said) != layers:
        raise config.refusal(key, said, f"{layers} entries are needed")
    return said
