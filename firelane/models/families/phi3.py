"""Phi-3, Phi-3.5 and Phi-4-mini (Abdin et al., 2024): Llama with fused projections and, in the long ones, a
factor for each rotated pair.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.projections import AttentionTensors
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Phi3ForCausalLM",)
FUSED = AttentionTensors(qkv=("qkv_proj",))


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="phi3"), read_heads(config), read_gate(config)
    rope, width = (
        read_rope(config, head_dim=heads.head_dim, partial=1.0),
        config.integer("intermediate_size"),
    )
    span = Window(config.integer("sliding_window")) if config.has("sliding_window") else CAUSAL
    config.ignore("sliding_window")
    config.only("attention_bias", False)
    config.only("mlp_bias", False)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, span=span, tensors=FUSED)
        x = mlp(layer, x, width, gate=gate, fused="gate_up_proj")
    return decoder.program(head(decoder, x))
