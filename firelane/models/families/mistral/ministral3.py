"""Ministral 3 (Mistral AI, 2025): Mistral with queries whose temperature grows with their position."""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Temperature
from firelane.program.program import Program

ARCHITECTURES = ("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration:ministral3")
BETA, LENGTH = "llama_4_scaling_beta", "original_max_position_embeddings"


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="ministral3"), read_gate(config)
    heads = read_heads(config, default_head_dim=128)
    rope = read_rope(config, head_dim=heads.head_dim, beside=(BETA, "max_position_embeddings"))
    width, scores = config.integer("intermediate_size"), AttentionScores(temperature=read_temperature(config))
    span = Window(config.integer("sliding_window")) if config.has("sliding_window") else CAUSAL
    config.ignore("sliding_window")
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, span=span, scores=scores)
        x = mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))


def read_temperature(config: ConfigReader) -> Temperature | None:
    section = config.section("rope_parameters")
    if section is None or not section.has(BETA):
        return None
    return Temperature(growth=section.number(BETA), period=section.integer(LENGTH))
