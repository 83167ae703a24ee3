"""Qwen2 and Qwen2.5 (Qwen2 report, 2024): Llama with biases on q, k and v, and optional windows in the upper
layers.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_partial_windows
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Qwen2ForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="qwen2"), read_heads(config), read_gate(config)
    rope, spans = read_rope(config, head_dim=heads.head_dim), read_partial_windows(config)
    width = config.integer("intermediate_size")
    x = embed(decoder)
    for layer, span in zip(decoder.layers(len(spans)), spans, strict=True):
        x = attention(layer, x, heads, rope, span=span, bias="qkv")
        x = mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))
