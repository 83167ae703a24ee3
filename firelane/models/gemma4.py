"""Gemma 4 (Google, 2026), its language models without per-layer embeddings (31B, 26B-A4B): Gemma 3 with
normalised values, scores without a scale, a factor of the stream behind each layer, and full layers with
heads of their own, of which a quarter turns and whose keys may be their values; experts beside the MLPs.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks import Scores, attention, embed, head, mlp
from firelane.models.config import ConfigReader
from firelane.models.decoder_config import FULL, SLIDING, read_cap, read_heads, read_pattern
from firelane.models.expert_config import read_expert_counts
from firelane.models.experts import ExpertNames, Experts, Routing
from firelane.models.gemma import AROUND_ATTENTION, AROUND_MLP, read_gemma, read_gemma_gate
from firelane.models.gemma4_blocks import SCALAR, mlp_and_experts
from firelane.models.projections import SEPARATE, AttentionTensors
from firelane.models.rope import Rope, plain_rope, read_rope
from firelane.program.ops import HeadShape
from firelane.program.program import Program

ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
UNSCALED = Scores(scale=1.0)
KEYS_AS_VALUES = AttentionTensors(qkv=("q_proj", "k_proj", "k_proj"))
NAMES = ExpertNames(router="router.proj", experts="experts", transposed=False)


def program(config: ConfigReader) -> Program:
    _refuse_others(config)
    decoder = read_gemma(
        config, name="gemma4", logits_softcap=read_cap(config, "final_logit_softcapping", None)
    )
    decoder, gate = replace(decoder, norm_plus=0.0), read_gemma_gate(config)
    heads, ropes, width = _heads(config), _ropes(config), config.integer("intermediate_size")
    spans = {False: CAUSAL, True: Window(config.integer("sliding_window", 512))}
    tensors = {
        False: KEYS_AS_VALUES if config.boolean("attention_k_eq_v", False) else SEPARATE,
        True: SEPARATE,
    }
    experts = _read_experts(config)
    pattern = (*read_pattern(config, default=6)[:-1], False)  # the last layer is a full one in any case
    x = embed(decoder)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        x = attention(
            layer,
            x,
            heads[slides],
            ropes[slides],
            span=spans[slides],
            head_norm="qkv",
            norms=AROUND_ATTENTION,
            scores=UNSCALED,
            tensors=tensors[slides],
        )
        if experts:
            x = mlp_and_experts(layer, x, width, experts, gate=gate)
        else:
            x = mlp(layer, x, width, gate=gate, norms=AROUND_MLP, scalar=SCALAR)
    return decoder.program(head(decoder, x))


def _heads(config: ConfigReader) -> dict[bool, HeadShape]:
    """Of full layers, and of layers with a window."""
    sliding = read_heads(config, default_head_dim=256)
    kv_heads = config.integer("num_global_key_value_heads", sliding.kv_heads)
    kv_heads = kv_heads if config.boolean("attention_k_eq_v", False) else sliding.kv_heads
    if sliding.heads % kv_heads:
        why = f"it has to divide num_attention_heads = {sliding.heads}"
        raise config.refusal("num_global_key_value_heads", kv_heads, why)
    head_dim = config.integer("global_head_dim", 512)
    return {False: HeadShape(heads=sliding.heads, kv_heads=kv_heads, head_dim=head_dim), True: sliding}


def _ropes(config: ConfigReader) -> dict[bool, Rope]:
    heads = _heads(config)
    if config.section("rope_parameters") is None:
        raise config.refusal("rope_parameters", None, "an object for each layer type is needed")
    full = read_rope(config, head_dim=heads[False].head_dim, layer_type=FULL, default_theta=1e6)
    if not any(read_pattern(config, default=6)):
        return {False: full, True: plain_rope(1e4, head_dim=heads[True].head_dim)}
    return {False: full, True: read_rope(config, head_dim=heads[True].head_dim, layer_type=SLIDING)}


def _read_experts(config: ConfigReader) -> Experts | None:
    if not config.boolean("enable_moe_block", False):
        config.ignore("num_experts", "top_k_experts", "moe_intermediate_size")
        return None
    count, picks = read_expert_counts(config, "num_experts", 0, 0, picks_key="top_k_experts")
    scale = config.integer("hidden_size") ** -0.5
    return Experts(
        count=count,
        picks=picks,
        width=config.integer("moe_intermediate_size"),
        routing=Routing(factors="router.per_expert_scale", logits_scale=scale),
        names=NAMES,
    )


def _refuse_others(config: ConfigReader) -> None:
    """Models of the family that have more than these blocks."""
    config.ignore("vocab_size_per_layer_input")
    for key, what in (
        ("hidden_size_per_layer_input", "per-layer embeddings"),
        ("num_kv_shared_layers", "keys and values of other layers"),
    ):
        if config.count(key, 256 if key.startswith("hidden") else 0):
            raise config.refusal(key, config.count(key, 256), f"{what} are not supported yet")
    if config.boolean("use_double_wide_mlp", False):
        raise config.refusal("use_double_wide_mlp", True, "wide layers of this family are not supported yet")
    if config.boolean("attention_bias", False):
        raise config.refusal("attention_bias", True, "biases of this family are not supported")
