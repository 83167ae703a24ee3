"""OLMo 2 (OLMo 2 report, 2024) and OLMo 3 (2025): norms behind the blocks alone, and of all heads of a row
together; OLMo 3 has windows, three layers to a full one, which alone is stretched.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import Norms, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    FULL,
    SLIDING,
    read_decoder,
    read_gate,
    read_heads,
    read_layers,
    read_pattern,
)
from firelane.models.blocks.rope import Rope, plain_rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Olmo2ForCausalLM", "Olmo3ForCausalLM")
AFTER_ATTENTION = Norms(before=None, after="post_attention_layernorm")
AFTER_MLP = Norms(before=None, after="post_feedforward_layernorm")


def program(config: ConfigReader) -> Program:
    is_third = config.architecture == "Olmo3ForCausalLM"
    decoder, heads = read_decoder(config, name="olmo3" if is_third else "olmo2"), read_heads(config)
    gate, width = read_gate(config), config.integer("intermediate_size")
    window = Window(config.integer("sliding_window", 4096)) if is_third else CAUSAL
    pattern = read_pattern(config, default=4) if is_third else (False,) * read_layers(config)
    ropes = (
        _ropes(config, heads.head_dim) if is_third else {False: read_rope(config, head_dim=heads.head_dim)}
    )
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    x = embed(decoder)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        span = window if slides else CAUSAL
        x = attention(
            layer, x, heads, ropes[slides], span=span, bias=bias, head_norm="whole", norms=AFTER_ATTENTION
        )
        x = mlp(layer, x, width, gate=gate, norms=AFTER_MLP)
    return decoder.program(head(decoder, x))


def _ropes(config: ConfigReader, head_dim: int) -> dict[bool, Rope]:
    """Rotations of full layers and of layers with a window; older configs stretch the full ones alone."""
    full = read_rope(config, head_dim=head_dim, layer_type=FULL, default_theta=5e5)
    if config.section("rope_parameters") is None:
        return {False: full, True: plain_rope(config.number("rope_theta", 5e5), head_dim=head_dim)}
    return {False: full, True: read_rope(config, head_dim=head_dim, layer_type=SLIDING, default_theta=5e5)}
