"""Ernie 4.5 with experts (Ernie 4.5 report, 2025): softmax scores, a bias for the choice, and experts that
all tokens share; neighbours of a head are rotated."""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import Experts, Routing, SharedExpert, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Ernie4_5_MoeForCausalLM",)
ROUTING = Routing(bias="mlp.moe_statics.e_score_correction_bias", bias_axes=2, in_float32=True)
WITHOUT_EFFECT = ("moe_capacity", "moe_gate", "fuse_rope")
LEAST_SUM = 1e-12


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="ernie4_5_moe", tied=True), read_gate(config)
    heads, layers = read_heads(config), read_layers(config)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=5e5, interleaved=True)
    config.only("use_bias", False)
    experts, sparse = _read_experts(config), _read_sparse_layers(config, layers)
    width = config.integer("intermediate_size")
    x = embed(decoder)
    for layer, has_experts in zip(decoder.layers(layers), sparse, strict=True):
        x = attention(layer, x, heads, rope)
        x = moe(layer, x, experts, gate=gate) if has_experts else mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def _read_experts(config: ConfigReader) -> Experts:
    config.ignore(*WITHOUT_EFFECT)
    config.only("moe_use_aux_free", True)
    config.only("use_rmsnorm", True)
    count, picks = read_expert_counts(config, "moe_num_experts", 64, 6, picks_key="moe_k")
    if config.number("moe_norm_min", LEAST_SUM) > LEAST_SUM:
        why = f"at most {LEAST_SUM:g} is supported"
        raise config.refusal("moe_norm_min", config.number("moe_norm_min"), why)
    width, shared = config.integer("moe_intermediate_size"), config.count("moe_num_shared_experts", 2)
    return Experts(
        count=count,
        picks=picks,
        width=width,
        routing=ROUTING,
        shared=SharedExpert(width=shared * width, tensor="mlp.shared_experts") if shared else None,
    )


def _read_sparse_layers(config: ConfigReader, layers: int) -> list[bool]:
    first, each = config.count("moe_layer_start_index", 1), config.integer("moe_layer_interval", 1)
    last = config.whole("moe_layer_end_index", -1)
    last = layers - 1 if last == -1 else last
    return [first <= number <= last and (number + 1) % each == 0 for number in range(layers)]
