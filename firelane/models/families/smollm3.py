"""SmolLM3 (Hugging Face, 2025): Llama with every fourth layer without positions (Yang et al., "Rope to Nope",
2025).
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Span, Window
from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    SLIDING,
    read_decoder,
    read_gate,
    read_heads,
    read_layer_types,
    read_layers,
    read_turned,
)
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("SmolLM3ForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder = read_decoder(config, name="smollm3", tied=True)
    heads, gate = read_heads(config), read_gate(config)
    rope, width = (
        read_rope(config, head_dim=heads.head_dim, default_theta=2e6),
        config.integer("intermediate_size"),
    )
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    mlp_bias = config.boolean("mlp_bias", False)
    turned = read_turned(config, read_layers(config))
    x = embed(decoder)
    for layer, turns, span in zip(decoder.layers(len(turned)), turned, _spans(config, turned), strict=True):
        x = attention(layer, x, heads, rope if turns else None, span=span, bias=bias)
        x = mlp(layer, x, width, gate=gate, bias=mlp_bias)
    return decoder.program(head(decoder, x))


def _spans(config: ConfigReader, turned: list[bool]) -> list[Span]:
    """Windows, if switched on, in the layers that layer_types names, or in those without positions."""
    types = read_layer_types(config, len(turned))
    if not config.boolean("use_sliding_window", False) or not config.has("sliding_window"):
        config.ignore("sliding_window", "max_window_layers")
        return [CAUSAL] * len(turned)
    window = Window(config.integer("sliding_window"))
    slides = [kind == SLIDING for kind in types] if types else [not turns for turns in turned]
    return [window if slide else CAUSAL for slide in slides]
