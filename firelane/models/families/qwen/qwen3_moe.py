"""Qwen3-MoE (Qwen3 report, 2025) and the language model of Qwen3-VL-MoE (Qwen3-VL report, 2025): Qwen3 with
experts.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_expert_counts, read_sparse_layers
from firelane.models.blocks.experts import Experts, Routing, moe
from firelane.models.blocks.rope import MROPE, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Qwen3MoeForCausalLM", "Qwen3VLMoeForConditionalGeneration")


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="qwen3_moe"), read_heads(config), read_gate(config)
    rope, layers = read_rope(config, head_dim=heads.head_dim, beside=MROPE), read_layers(config)
    experts, sparse = _read_experts(config), read_sparse_layers(config, layers)
    windowed = config.boolean("use_sliding_window", False) and config.has("sliding_window")
    span = Window(config.integer("sliding_window")) if windowed else CAUSAL
    config.ignore("sliding_window", "max_window_layers")
    config.only("shared_expert_intermediate_size", 0)
    width, bias = config.integer("intermediate_size", 6144), config.boolean("attention_bias", False)
    x = embed(decoder)
    for layer, has_experts in zip(decoder.layers(layers), sparse, strict=True):
        x = attention(layer, x, heads, rope, span=span, bias="qkvo" if bias else "", head_norm="each")
        x = moe(layer, x, experts, gate=gate) if has_experts else mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_experts", 128, 8)
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("moe_intermediate_size", 768),
        routing=Routing(normalise=config.boolean("norm_topk_prob", "VL" in config.architecture)),
    )
