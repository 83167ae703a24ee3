"""GLM-4.7-Flash (Zhipu AI, 2026): the latent attention of DeepSeek V3 with the experts of GLM-4.5."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.expert_config import read_deepseek_experts, read_mlp_layer_types
from firelane.models.blocks.experts import moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_latent
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import Block, nextn_predictor
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("Glm4MoeLiteForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, block = _read(config)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = block(layer, x)
    return decoder.program(head(decoder, x))


def predictor(config: ConfigReader) -> DraftHead:
    return nextn_predictor(config, *_read(config))


def _read(config: ConfigReader) -> tuple[Decoder, Block]:
    """The decoder without ops, and what adds one of its layers. Layers behind the last one have experts."""
    decoder, gate, layers = read_decoder(config, name="glm4_moe_lite"), read_gate(config), read_layers(config)
    shape = read_latent(config, query_rank=768, nope=192, value=256)
    rope = read_rope(config, head_dim=shape.rope, interleaved=config.boolean("rope_interleave", True))
    experts, sparse = read_deepseek_experts(config, 64, 4), read_mlp_layer_types(config, layers, dense=1)
    width = config.integer("intermediate_size")

    def block(layer: Layer, x: Value) -> Value:
        x = latent(layer, x, shape, rope)
        is_sparse = layer.number >= layers or sparse[layer.number]
        return moe(layer, x, experts, gate=gate) if is_sparse else mlp(layer, x, width, gate=gate)

    return decoder, block
