"""EXAONE 4 (LG AI Research, 2025): norms behind the blocks alone and of each head; where some layers have
windows, the others have no positions.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Span, Window
from firelane.models.blocks.blocks import Norms, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    read_decoder,
    read_gate,
    read_heads,
    read_layers,
    read_pattern,
)
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Exaone4ForCausalLM",)
AFTER_ATTENTION = Norms(before=None, after="post_attention_layernorm")
AFTER_MLP = Norms(before=None, after="post_feedforward_layernorm")
DEFAULT_WINDOW = 4096


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="exaone4"), read_heads(config), read_gate(config)
    rope, width = read_rope(config, head_dim=heads.head_dim), config.integer("intermediate_size")
    spans, has_windows = _spans(config)
    x = embed(decoder)
    for layer, span in zip(decoder.layers(len(spans)), spans, strict=True):
        turns = rope if span != CAUSAL or not has_windows else None
        x = attention(layer, x, heads, turns, span=span, head_norm="each", norms=AFTER_ATTENTION)
        x = mlp(layer, x, width, gate=gate, norms=AFTER_MLP)
    return decoder.program(head(decoder, x))


def _spans(config: ConfigReader) -> tuple[list[Span], bool]:
    """The span of each layer, and whether the model has windows at all."""
    window = config.integer_or_none("sliding_window", DEFAULT_WINDOW)
    if window is None:
        config.ignore("sliding_window_pattern", "layer_types")
        return [CAUSAL] * read_layers(config), False
    return [Window(window) if slides else CAUSAL for slides in read_pattern(config, default=4)], True
