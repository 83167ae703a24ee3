"""Helium (Kyutai, 2025): Llama whose heads are rotated in pairs of neighbours."""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("HeliumForCausalLM",)
DEFAULT_HEAD_DIM, DEFAULT_THETA = 128, 1e5


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="helium"), read_gate(config)
    heads = read_heads(config, default_head_dim=DEFAULT_HEAD_DIM)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=DEFAULT_THETA, interleaved=True)
    width, mlp_bias = config.integer("intermediate_size"), config.boolean("mlp_bias", False)
    bias = "qkv" if config.boolean("attention_bias", False) else ""
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias=bias)
        x = mlp(layer, x, width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))
