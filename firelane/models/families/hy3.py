"""Hy3 (Tencent, 2026): experts behind a dense layer, chosen by sigmoids and a bias, beside one that all
tokens share; norms of heads."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, SharedExpert, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import Block, nextn_predictor
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("HYV3ForCausalLM",)
NAMES = ExpertNames(router="mlp.router.gate")
IN_FLOAT32 = ("enable_attention_fp32_softmax", "enable_lm_head_fp32", "enable_moe_fp32_combine")
"""Switches of sums that are made in float32 in any case."""
DENSE, SPARSE = "dense", "sparse"


def program(config: ConfigReader) -> Program:
    decoder, block = _read(config)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = block(layer, x)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    return nextn_predictor(config, *_read(config), norm="final_layernorm")


def _read(config: ConfigReader) -> tuple[Decoder, Block]:
    """The decoder without ops, and what adds one of its layers. Layers behind the last one have experts."""
    decoder, gate = read_decoder(config, name="hy3"), read_gate(config)
    heads, layers = read_heads(config, default_head_dim=128), read_layers(config)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=11158840.0)
    bias = config.boolean("attention_bias", False)
    config.only("mlp_bias", False)
    experts, types = _read_experts(config), _read_layer_types(config, layers)
    width = config.integer("intermediate_size", 13312)

    def block(layer: Layer, x: Value) -> Value:
        x = attention(layer, x, heads, rope, bias="qkvo" if bias else "", head_norm="each")
        is_sparse = layer.number >= layers or types[layer.number] == SPARSE
        return moe(layer, x, experts, gate=gate) if is_sparse else mlp(layer, x, width, gate=gate)

    return decoder, block


def _read_layer_types(config: ConfigReader, layers: int) -> list[str]:
    dense = min(config.count("first_k_dense_replace", 1), layers)
    types = config.strings("mlp_layer_types") or [DENSE] * dense + [SPARSE] * (layers - dense)
    if len(types) != layers or not {DENSE, SPARSE}.issuperset(types):
        raise config.refusal("mlp_layer_types", types, f"{layers} entries, dense or sparse, are supported")
    return types


def _read_experts(config: ConfigReader) -> Experts:
    for key in ("moe_router_enable_expert_bias", "moe_router_use_sigmoid", "route_norm"):
        config.only(key, True)
    config.ignore(*IN_FLOAT32)
    count, picks = read_expert_counts(config, "num_experts", 192, 8)
    width, shared = config.integer("moe_intermediate_size", 1536), config.integer("num_shared_experts", 1)
    scale = config.number("router_scaling_factor", 2.826)
    return Experts(
        count=count,
        picks=picks,
        width=width,
        routing=Routing(score="sigmoid", scale=scale, bias="mlp.expert_bias", in_float32=True),
        names=NAMES,
        shared=SharedExpert(width=shared * width, tensor="mlp.shared_mlp"),
    )
