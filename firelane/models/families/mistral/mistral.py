"""Mistral 7B and its successors of the same shape (Jiang et al., 2023): Llama with a sliding window in every
layer.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("MistralForCausalLM",)
DEFAULT_WINDOW = 4096  # of configs without the key; later models say null, which means none


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="mistral"), read_heads(config), read_gate(config)
    rope = read_rope(config, head_dim=heads.head_dim)
    width = config.integer("intermediate_size")
    window = config.integer_or_none("sliding_window", DEFAULT_WINDOW)
    span = Window(window) if window else CAUSAL
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, span=span)
        x = mlp(layer, x, width, gate=gate)
    return decoder.program(head(decoder, x))
