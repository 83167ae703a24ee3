"""Qwen1.5-MoE and Qwen2-MoE (Qwen2 report, 2024): Qwen2 with experts, and one that all tokens share."""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_partial_windows
from firelane.models.blocks.expert_config import read_expert_counts, read_sparse_layers
from firelane.models.blocks.experts import Experts, Routing, SharedExpert, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Qwen2MoeForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="qwen2_moe"), read_heads(config), read_gate(config)
    rope, spans = read_rope(config, head_dim=heads.head_dim), read_partial_windows(config)
    _refuse_unnamed_windows(config)
    experts, sparse = _read_experts(config), read_sparse_layers(config, len(spans))
    width, bias = config.integer("intermediate_size", 5632), config.boolean("qkv_bias", True)
    x = embed(decoder)
    for layer, span, has_experts in zip(decoder.layers(len(spans)), spans, sparse, strict=True):
        x = attention(layer, x, heads, rope, span=span, bias="qkv" if bias else "")
        x = moe(layer, x, experts, gate=gate) if has_experts else mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def _refuse_unnamed_windows(config: ConfigReader) -> None:
    if config.boolean("use_sliding_window", False) and not config.has("layer_types"):
        raise config.refusal("use_sliding_window", True, "layer_types has to name the layers with windows")


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_experts", 60, 4)
    shared = config.integer("shared_expert_intermediate_size", 5632)
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("moe_intermediate_size", 1408),
        routing=Routing(normalise=config.boolean("norm_topk_prob", False)),
        shared=SharedExpert(width=shared, tensor="mlp.shared_expert", gate="mlp.shared_expert_gate"),
    )
