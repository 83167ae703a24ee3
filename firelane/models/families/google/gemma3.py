"""Gemma 3 (Gemma 3 report, 2025), its language model: Gemma 2 with norms of query and key heads in place of
caps, five layers of windows to a full one, and rotations of their own for both.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import FULL, SLIDING, read_cap, read_heads, read_pattern
from firelane.models.blocks.rope import Rope, plain_rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.families.google.gemma import (
    AROUND_ATTENTION,
    AROUND_MLP,
    read_gemma,
    read_gemma_gate,
    read_scale,
)
from firelane.program.program import Program

ARCHITECTURES = ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")


def program(config: ConfigReader) -> Program:
    decoder = read_gemma(
        config, name="gemma3", logits_softcap=read_cap(config, "final_logit_softcapping", None)
    )
    heads, gate = read_heads(config, default_head_dim=256), read_gemma_gate(config)
    ropes, width = _ropes(config, heads.head_dim), config.integer("intermediate_size")
    window = Window(config.integer("sliding_window", 4096))
    scores = AttentionScores(
        scale=read_scale(config), softcap=read_cap(config, "attn_logit_softcapping", None)
    )
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    pattern = read_pattern(config, default=6)
    x = embed(decoder)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        x = attention(
            layer,
            x,
            heads,
            ropes[slides],
            span=window if slides else CAUSAL,
            bias=bias,
            head_norm="each",
            norms=AROUND_ATTENTION,
            scores=scores,
        )
        x = mlp(layer, x, width, gate=gate, norms=AROUND_MLP)
    return decoder.program(head(decoder, x))


def _ropes(config: ConfigReader, head_dim: int) -> dict[bool, Rope]:
    """Rotations of full layers and of layers with a window; older configs stretch the full ones alone."""
    full = read_rope(config, head_dim=head_dim, layer_type=FULL, default_theta=1e6)
    if config.section("rope_parameters") is None:
        return {False: full, True: plain_rope(config.number("rope_local_base_freq", 1e4), head_dim=head_dim)}
    config.ignore("rope_local_base_freq")
    return {False: full, True: read_rope(config, head_dim=head_dim, layer_type=SLIDING, default_theta=1e4)}
