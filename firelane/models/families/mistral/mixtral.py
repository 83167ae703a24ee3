"""Mixtral (Jiang et al., "Mixtral of Experts", 2024): Mistral whose MLPs are experts."""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import attention, embed, head
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("MixtralForCausalLM",)
BLOCK = "block_sparse_moe"
NAMES = ExpertNames(router=f"{BLOCK}.gate", experts=f"{BLOCK}.experts", gate="w1", up="w3", down="w2")


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="mixtral"), read_heads(config), read_gate(config)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=1e6)
    count, picks = read_expert_counts(config, "num_local_experts", 8, 2)
    experts = Experts(count=count, picks=picks, width=config.integer("intermediate_size"), names=NAMES)
    span = Window(config.integer("sliding_window")) if config.has("sliding_window") else CAUSAL
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, span=span)
        x = moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))
