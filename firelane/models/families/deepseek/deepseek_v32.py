"""DeepSeek V3.2 (DeepSeek-AI, 2025): DeepSeek V3, with an indexer in each layer that chooses the positions
which latent attention reads."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.expert_config import read_deepseek_experts
from firelane.models.blocks.experts import moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_indexer, read_latent
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import Block, nextn_predictor
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("DeepseekV32ForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, block = _read(config)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = block(layer, x)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    return nextn_predictor(config, *_read(config))


def _read(config: ConfigReader) -> tuple[Decoder, Block]:
    """The decoder without ops, and what adds one of its layers, or of those that predict tokens."""
    decoder, gate, layers = read_decoder(config, name="deepseek_v32"), read_gate(config), read_layers(config)
    shape = read_latent(config, query_rank=1536, sparse=True)
    rope = read_rope(config, head_dim=shape.rope, interleaved=True)
    indexer = read_indexer(config, shape, rope, [True] * layers, heads=64)
    experts, dense = read_deepseek_experts(config, 256, 8), config.count("first_k_dense_replace", 3)
    width = config.integer("intermediate_size")

    def block(layer: Layer, x: Value) -> Value:
        x = latent(layer, x, shape, rope, indexer=indexer)
        return mlp(layer, x, width, gate=gate) if layer.number < dense else moe(layer, x, experts, gate=gate)

    return decoder, block
