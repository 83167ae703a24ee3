"""Ernie 4.5, dense (Ernie 4.5 report, 2025): Llama whose heads are rotated in pairs of neighbours."""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Ernie4_5ForCausalLM",)
DEFAULT_HEAD_DIM, DEFAULT_THETA = 128, 5e5
WITHOUT_EFFECT = ("fuse_rope", "weight_share_add_bias")


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="ernie4_5", tied=True), read_gate(config)
    heads = read_heads(config, default_head_dim=DEFAULT_HEAD_DIM)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=DEFAULT_THETA, interleaved=True)
    width, bias = config.integer("intermediate_size"), config.boolean("use_bias", False)
    config.ignore(*WITHOUT_EFFECT)
    config.only("use_rmsnorm", True)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias="qkvo" if bias else "")
        x = mlp(layer, x, width, gate=gate, bias=bias)
    return decoder.program(head(decoder, x))
