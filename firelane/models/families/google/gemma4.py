"""Gemma 4 (Google, 2026), its language models: Gemma 3 with normalised values, scores without a scale, a
factor of the stream behind each layer, and full layers with heads of their own, of which a quarter turns and
whose keys may be their values; experts beside the MLPs (26B-A4B); inputs of each layer, and last layers that
attend to the keys of others (E2B, E4B).
"""

from __future__ import annotations

from dataclasses import replace

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import FULL, SLIDING, read_cap, read_heads, read_pattern
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing
from firelane.models.blocks.projections import SEPARATE, AttentionTensors
from firelane.models.blocks.rope import Rope, plain_rope, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.families.google.gemma import AROUND_ATTENTION, AROUND_MLP, read_gemma, read_gemma_gate
from firelane.models.families.google.gemma4_blocks import (
    SCALAR,
    attention_to,
    mlp_and_experts,
    read_full_heads,
    read_layer_inputs,
    read_sources,
)
from firelane.program.ops import HeadShape
from firelane.program.program import Program

ARCHITECTURES = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
UNSCALED = AttentionScores(scale=1.0)
KEYS_AS_VALUES = AttentionTensors(qkv=("q_proj", "k_proj", "k_proj"))
OF_KEYS = ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
"""Tensors that published checkpoints have and layers without keys of their own do not use."""
NAMES = ExpertNames(router="router.proj", experts="experts", transposed=False)


def program(config: ConfigReader) -> Program:
    config.only("attention_bias", False)
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
    experts, double = _read_experts(config), config.boolean("use_double_wide_mlp", False)
    pattern = (*read_pattern(config, default=6)[:-1], False)  # the last layer is a full one in any case
    sources, inputs = read_sources(config, pattern), read_layer_inputs(config, len(pattern))
    x = embed(decoder)
    embedded, scalar = (inputs.begin(decoder, x), "") if inputs else (x, SCALAR)
    for layer, slides in zip(decoder.layers(len(pattern)), pattern, strict=True):
        shape, rope, span, own = heads[slides], ropes[slides], spans[slides], layer.number not in sources
        if own:
            x = attention(
                layer,
                x,
                shape,
                rope,
                span=span,
                head_norm="qkv",
                norms=AROUND_ATTENTION,
                scores=UNSCALED,
                tensors=tensors[slides],
            )
        else:
            x = attention_to(layer, x, shape, rope, span, sources[layer.number])
        wide = width if own or not double else 2 * width
        if experts:
            x = mlp_and_experts(layer, x, wide, experts, gate=gate, scalar=scalar)
        else:
            x = mlp(layer, x, wide, gate=gate, norms=AROUND_MLP, scalar=scalar)
        x = inputs.add(layer, x, embedded, gate) if inputs else x
    left_out = tuple(f"model.layers.{number}.self_attn.{part}" for number in sources for part in OF_KEYS)
    return replace(decoder.program(head(decoder, x)), left_out=left_out)


def _heads(config: ConfigReader) -> dict[bool, HeadShape]:
    """Shapes of heads in full layers and in layers with a window."""
    sliding = read_heads(config, default_head_dim=256)
    head_dim, kv_heads = read_full_heads(config, sliding)
    if sliding.heads % kv_heads:
        why = f"it has to divide num_attention_heads = {sliding.heads}"
        raise config.refusal("num_global_key_value_heads", kv_heads, why)
    if head_dim % 2:
        raise config.refusal("global_head_dim", head_dim, "an even number is needed")
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
