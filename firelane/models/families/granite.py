"""Granite 3 and 4 dense (IBM, 2024): Llama with factors of the embedding, of scores, of what blocks add, and
of logits.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.models.blocks.blocks import AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("GraniteForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder = replace(
        read_decoder(config, name="granite"),
        embed_scale=config.number("embedding_multiplier", 1.0),
        residual_scale=config.number("residual_multiplier", 1.0),
        logits_scale=1 / config.number("logits_scaling", 1.0),
    )
    heads, gate = read_heads(config), read_gate(config)
    rope, width = read_rope(config, head_dim=heads.head_dim), config.integer("intermediate_size")
    scores = AttentionScores(scale=config.number("attention_multiplier", 1.0))
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    mlp_bias = config.boolean("mlp_bias", False)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias=bias, scores=scores)
        x = mlp(layer, x, width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))
