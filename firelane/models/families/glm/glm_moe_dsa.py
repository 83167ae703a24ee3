"""GLM-5, 5.1, 5.2 and 5.3 (Zhipu AI, 2026): the latent attention and the indexer of DeepSeek V3.2 with the
experts of GLM-4.5; from 5.2 on most layers read the positions that one before them has chosen."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder, Layer, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.expert_config import read_deepseek_experts, read_mlp_layer_types
from firelane.models.blocks.experts import moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_indexer, read_latent
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import Block, nextn_predictor
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("GlmMoeDsaForCausalLM",)
KINDS = {"full": True, "shared": False, "F": True, "S": False}


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
    decoder, gate, layers = read_decoder(config, name="glm_moe_dsa"), read_gate(config), read_layers(config)
    config.only("mlp_bias", False)
    config.ignore("moe_router_dtype")  # logits are float32
    shape = read_latent(config, query_rank=2048, nope=192, value=256, sparse=True)
    rope = read_rope(config, head_dim=shape.rope, interleaved=True)
    full = _read_full_layers(config, layers)
    indexer = read_indexer(config, shape, rope, full, heads=32, interleaved=True)
    experts, sparse = read_deepseek_experts(config, 256, 8), read_mlp_layer_types(config, layers, dense=3)
    config.only("num_experts", experts.count)  # the same by another name
    width = config.integer("intermediate_size")

    def block(layer: Layer, x: Value) -> Value:
        x = latent(layer, x, shape, rope, indexer=indexer)
        is_sparse = layer.number >= layers or sparse[layer.number]
        return moe(layer, x, experts, gate=gate) if is_sparse else mlp(layer, x, width, gate=gate)

    return decoder, block


def _read_full_layers(config: ConfigReader, layers: int) -> list[bool]:
    """Whether each layer has an indexer of its own: by indexer_types, by the letters of index_topk_pattern,
    or every index_topk_freq-th behind the first ones."""
    config.ignore("layer_types")  # one name for all layers
    key, pattern = "indexer_types", config.string("index_topk_pattern", "")
    freq, offset = config.integer("index_topk_freq", 1), config.count("index_skip_topk_offset", 2)
    turns = ["full" if max(i - offset + 1, 0) % freq == 0 else "shared" for i in range(layers)]
    kinds = config.strings(key) or list(pattern) or turns
    if len(kinds) != layers or not KINDS.keys() >= set(kinds) or not KINDS[kinds[0]]:
        raise config.refusal(key, kinds, f"{layers} entries, full or shared, the first full, are needed")
    return [KINDS[kind] for kind in kinds]
