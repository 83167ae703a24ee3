"""Llama 2 and 3 (Touvron et al., 2023; Llama 3 report, 2024), and the many models that share their
architecture.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("LlamaForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="llama"), read_heads(config), read_gate(config)
    rope = read_rope(config, head_dim=heads.head_dim)
    width, mlp_bias = config.integer("intermediate_size"), config.boolean("mlp_bias", False)
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias=bias)
        x = mlp(layer, x, width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))
