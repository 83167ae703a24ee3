"""Seed-OSS (ByteDance, 2025): Llama with biases of queries, keys and values."""

from __future__ import annotations

from firelane.models.blocks.blocks import Bias, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("SeedOssForCausalLM",)
BIASES: dict[tuple[bool, bool], Bias] = {
    (False, False): "",
    (True, False): "qkv",
    (False, True): "o",
    (True, True): "qkvo",
}


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="seed-oss"), read_gate(config)
    heads = read_heads(config, default_head_dim=128)
    rope, width = read_rope(config, head_dim=heads.head_dim), config.integer("intermediate_size")
    qkv, output = config.boolean("attention_bias", True), config.boolean("attention_out_bias", False)
    bias, mlp_bias = BIASES[qkv, output], config.boolean("mlp_bias", False)
    config.ignore("residual_dropout")
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias=bias)
        x = mlp(layer, x, width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))
