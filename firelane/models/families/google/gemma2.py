"""Gemma 2 (Gemma 2 report, 2024): norms before and after each block with weights stored as w - 1, capped
scores and logits, a GELU gate, a window in every other layer, a scaled embedding.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_cap, read_heads, read_pattern
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.families.google.gemma import (
    AROUND_ATTENTION,
    AROUND_MLP,
    read_gemma,
    read_gemma_gate,
    read_scale,
)
from firelane.program.program import Program

ARCHITECTURES = ("Gemma2ForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder = read_gemma(
        config, name="gemma2", logits_softcap=read_cap(config, "final_logit_softcapping", 30.0)
    )
    heads, gate = read_heads(config, default_head_dim=256), read_gemma_gate(config)
    rope, width = read_rope(config, head_dim=heads.head_dim), config.integer("intermediate_size")
    window = Window(config.integer("sliding_window", 4096))
    scores = AttentionScores(
        scale=read_scale(config), softcap=read_cap(config, "attn_logit_softcapping", 50.0)
    )
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    pattern = read_pattern(config, default=2)
    x = embed(decoder)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        span = window if slides else CAUSAL
        x = attention(layer, x, heads, rope, span=span, bias=bias, norms=AROUND_ATTENTION, scores=scores)
        x = mlp(layer, x, width, gate=gate, norms=AROUND_MLP)
    return decoder.program(head(decoder, x))
