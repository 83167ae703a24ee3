"""Mistral Small 4 (Mistral AI, 2026): latent attention with queries whose temperature grows with their
position, and experts beside a shared one."""

from __future__ import annotations

from firelane.models.blocks.blocks import embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.expert_config import read_beside_shared, read_expert_counts, read_groups
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_latent
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.families.mistral.ministral3 import BETA, read_temperature
from firelane.program.program import Program

ARCHITECTURES = ("Mistral4ForCausalLM", "Mistral3ForConditionalGeneration:mistral4")


def program(config: ConfigReader) -> Program:
    decoder, gate, layers = read_decoder(config, name="mistral4"), read_gate(config), read_layers(config)
    shape = read_latent(config, query_rank=1024, rank=256, nope=64)
    rope = read_rope(
        config,
        head_dim=shape.rope,
        interleaved=config.boolean("rope_interleave", True),
        within=shape.query,
        beside=(BETA, "max_position_embeddings"),
    )
    temperature, width = read_temperature(config), config.integer("intermediate_size")
    experts, dense = _read_experts(config), config.count("first_k_dense_replace", 0)
    x = embed(decoder)
    for layer in decoder.layers(layers):
        x = latent(layer, x, shape, rope, temperature=temperature)
        x = mlp(layer, x, width, gate=gate) if layer.number < dense else moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))


def _read_experts(config: ConfigReader) -> Experts:
    """Scores are shares of a softmax, without a bias; groups as in DeepSeek V3; one tensor for all."""
    count, picks = read_expert_counts(config, "n_routed_experts", 128, 4)
    routing = Routing(
        normalise=config.boolean("norm_topk_prob", True),
        scale=config.number("routed_scaling_factor", 1.0),
        groups=read_groups(config, count, picks),
    )
    return read_beside_shared(config, routing, count, picks, ExpertNames(transposed=False))
