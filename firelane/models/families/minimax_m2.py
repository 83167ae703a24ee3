"""MiniMax-M2 (2025): experts in every layer, chosen by sigmoids and a bias; norms over all heads of a row
together, of which one half turns."""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_layers
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = ("MiniMaxM2ForCausalLM",)
BLOCK = "block_sparse_moe"
NAMES = ExpertNames(router=f"{BLOCK}.gate", experts=f"{BLOCK}.experts", gate="w1", up="w3", down="w2")
ROUTING = Routing(score="sigmoid", bias=f"{BLOCK}.e_score_correction_bias", in_float32=True)
WITHOUT_EFFECT = (
    "layernorm_full_attention_beta",
    "layernorm_linear_attention_beta",
    "layernorm_mlp_beta",
    "mlp_intermediate_size",
    "mtp_transformer_layers",
    "num_mtp_modules",
    "shared_moe_mode",
    "use_mtp",
)


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="minimax_m2"), read_gate(config)
    heads = read_heads(config, default_head_dim=128)
    rope = read_rope(config, head_dim=heads.head_dim, partial=1.0, default_theta=5e6)
    _check_variants(config)
    count, picks = read_expert_counts(config, "num_local_experts", 256, 8)
    width = config.integer("intermediate_size")
    experts = Experts(count=count, picks=picks, width=width, routing=ROUTING, names=NAMES)
    x = embed(decoder)
    for layer in decoder.layers(read_layers(config)):
        x = attention(layer, x, heads, rope, head_norm="whole")
        x = moe(layer, x, experts, gate=gate)
    return decoder.program(head(decoder, x))


def _check_variants(config: ConfigReader) -> None:
    """Refuses what the keys of earlier models of this maker could ask for."""
    config.ignore(*WITHOUT_EFFECT)
    config.choice("scoring_func", "sigmoid", among=("sigmoid",))
    config.choice("qk_norm_type", "per_layer", among=("per_layer",))
    config.only("use_routing_bias", True)
    config.only("shared_intermediate_size", 0)
    if not all(config.flags("attn_type_list")):
        raise config.refusal("attn_type_list", 0, "only layers of full attention (1) are supported")
