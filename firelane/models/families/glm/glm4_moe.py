"""GLM-4.5, 4.6 and 4.7 (GLM-4.5 report, 2025): experts behind some dense layers, of which each token uses
a few beside one that all share."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_deepseek_experts
from firelane.models.blocks.experts import moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import Block, nextn_predictor
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("Glm4MoeForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, block = _read(config)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = block(layer, x)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    return nextn_predictor(config, *_read(config))


def _read(config: ConfigReader) -> tuple[Decoder, Block]:
    """The decoder without ops, and what adds one of its layers."""
    decoder, heads, gate = read_decoder(config, name="glm4_moe"), read_heads(config), read_gate(config)
    rope = read_rope(config, head_dim=heads.head_dim, partial=0.5)
    experts, dense = read_deepseek_experts(config, 128, 8), config.count("first_k_dense_replace", 1)
    width, bias = config.integer("intermediate_size"), config.boolean("attention_bias", False)
    head_norm = "each" if config.boolean("use_qk_norm", False) else ""

    def block(layer: Layer, x: Value) -> Value:
        x = attention(layer, x, heads, rope, bias="qkv" if bias else "", head_norm=head_norm)
        return mlp(layer, x, width, gate=gate) if layer.number < dense else moe(layer, x, experts, gate=gate)

    return decoder, block
