"""Llama-Nemotron (Bercovich et al., "Llama-Nemotron", 2025): Llama after a search for what each layer can do
without: layers have key heads and widths of their own, and some have no attention or no MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import HeadShape
from firelane.program.program import Program

ARCHITECTURES = ("DeciLMForCausalLM",)
STEP = 256  # of widths that are given as a share of the stream's


@dataclass(frozen=True)
class NemotronBlock:
    """One layer: without attention if it has no heads, without an MLP if its width is 0."""

    heads: HeadShape | None
    width: int


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="llama_nemotron"), read_gate(config)
    heads, blocks = read_heads(config), _read_blocks(config)
    rope = read_rope(config, head_dim=heads.head_dim)
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    mlp_bias = config.boolean("mlp_bias", False)
    config.ignore("num_key_value_heads", "intermediate_size")  # each layer has its own
    x = embed(decoder)
    for layer, block in zip(decoder.layers(len(blocks)), blocks, strict=True):
        if block.heads:
            x = attention(layer, x, block.heads, rope, bias=bias)
        if block.width:
            x = mlp(layer, x, block.width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))


def _read_blocks(config: ConfigReader) -> list[NemotronBlock]:
    heads, width = read_heads(config), config.integer("hidden_size")
    found: list[NemotronBlock] = []
    for own in config.sections("block_configs", read_layers(config)):
        attention, ffn = own.section("attention"), own.section("ffn")
        if attention is None or ffn is None:
            missing = "ffn" if attention else "attention"
            raise own.refusal(missing, None, "an object is needed")
        found.append(NemotronBlock(_read_attention(attention, heads), _read_width(ffn, width)))
        for part in (own, attention, ffn):
            part.finish()
    if not any(block.heads for block in found):
        raise config.refusal("block_configs", "...", "at least one layer with attention is needed")
    return found


def _read_attention(config: ConfigReader, heads: HeadShape) -> HeadShape | None:
    _refuse_replaced(config, "replace_with_linear", "sparsify", "window_length", "num_sink_tokens")
    config.ignore("unshifted_sink", "use_prefill_window_in_sink_attention")  # of layers with sink tokens
    if config.boolean("no_op", False):
        config.ignore("n_heads_in_group")
        return None
    group = config.integer("n_heads_in_group")
    if heads.heads % group:
        raise config.refusal(
            "n_heads_in_group", group, f"it has to divide num_attention_heads = {heads.heads}"
        )
    return HeadShape(heads=heads.heads, kv_heads=heads.heads // group, head_dim=heads.head_dim)


def _read_width(config: ConfigReader, hidden: int) -> int:
    _refuse_replaced(config, "replace_with_linear", "sparsify")
    read_gate(config)
    if config.boolean("no_op", False):
        config.ignore("ffn_mult", "intermediate_size")
        return 0
    if not config.has("ffn_mult"):
        return config.integer("intermediate_size")
    exact = int(2 * config.number("ffn_mult") * hidden / 3)
    return -(-exact // STEP) * STEP


def _refuse_replaced(config: ConfigReader, *keys: str) -> None:
    for key in keys:
        if config.value(key):
            raise config.refusal(key, config.value(key), "layers that were replaced are not supported")
        config.ignore(key)
