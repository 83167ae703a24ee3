"""GLM-4 and its dense successors (Team GLM, 2024): neighbours of one half of each head are rotated, gate
and up projections are one tensor; the 0414 models add norms behind the blocks.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import BEFORE_ATTENTION, BEFORE_MLP, Norms, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("Glm4ForCausalLM", "GlmForCausalLM")
AROUND_ATTENTION = Norms(before="input_layernorm", after="post_self_attn_layernorm")
AROUND_MLP = Norms(before="post_attention_layernorm", after="post_mlp_layernorm")


def program(config: ConfigReader) -> Program:
    is_0414 = config.architecture == "Glm4ForCausalLM"
    decoder, gate = read_decoder(config, name="glm4" if is_0414 else "glm"), read_gate(config)
    heads = read_heads(config, default_head_dim=128)
    rope = read_rope(config, head_dim=heads.head_dim, partial=0.5, interleaved=True)
    width = config.integer("intermediate_size")
    bias = "qkv" if config.boolean("attention_bias", True) else ""
    around = (AROUND_ATTENTION, AROUND_MLP) if is_0414 else (BEFORE_ATTENTION, BEFORE_MLP)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, bias=bias, norms=around[0])
        x = mlp(layer, x, width, gate=gate, norms=around[1], fused="gate_up_proj")
    return decoder.program(head(decoder, x))
