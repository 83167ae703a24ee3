"""DeepSeek V2 and V2-Lite (DeepSeek-AI, 2024): latent attention, and many narrow experts beside shared ones,
behind some dense layers."""

from __future__ import annotations

from firelane.models.blocks.blocks import embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_layers
from firelane.models.blocks.expert_config import read_beside_shared, read_expert_counts, read_groups
from firelane.models.blocks.experts import Experts, Routing, moe
from firelane.models.blocks.latent import latent
from firelane.models.blocks.latent_config import read_latent
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("DeepseekV2ForCausalLM",)


def program(config: ConfigReader) -> Program:
    decoder, gate, layers = read_decoder(config, name="deepseek_v2"), read_gate(config), read_layers(config)
    shape = read_latent(config, query_rank=1536)
    rope = read_rope(config, head_dim=shape.rope, interleaved=True)
    experts, dense = _read_experts(config), config.count("first_k_dense_replace", 0)
    width = config.integer("intermediate_size")
    x = embed(decoder)
    for layer in decoder.layers(layers):
        x = latent(layer, x, shape, rope)
        x = mlp(layer, x, width, gate=gate) if layer.number < dense else moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))


def _read_experts(config: ConfigReader) -> Experts:
    """A group is as good as its best expert; shares are never normalised."""
    config.choice("scoring_func", "softmax", among=("softmax",))
    config.only("norm_topk_prob", False)
    count, picks = read_expert_counts(config, "n_routed_experts", 64, 6)
    method = config.choice("topk_method", "greedy", among=("greedy", "group_limited_greedy"))
    config.ignore("n_group", "topk_group")
    routing = Routing(
        normalise=False,
        scale=config.number("routed_scaling_factor", 1.0),
        groups=None if method == "greedy" else read_groups(config, count, picks, best=1),
    )
    return read_beside_shared(config, routing, count, picks)
