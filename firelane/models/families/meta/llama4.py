"""Llama 4 (Meta, 2025), its language models Scout and Maverick: layers that see their own chunk and turn
neighbours, and layers that see all and have no positions but a temperature; one expert a token, and a shared
one.
"""

from __future__ import annotations

from firelane.contract.span import CAUSAL, Chunk, Span
from firelane.models.blocks.blocks import PLAIN_SCORES, AttentionScores, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import (
    FULL,
    read_decoder,
    read_gate,
    read_heads,
    read_layer_types,
    read_layers,
    read_turned,
)
from firelane.models.blocks.expert_config import read_expert_counts
from firelane.models.blocks.experts import ExpertNames, Experts, Routing, SharedExpert, moe
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.ops import Temperature
from firelane.program.program import Program

ARCHITECTURES = ("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
BLOCK = "feed_forward"
NAMES = ExpertNames(router=f"{BLOCK}.router", experts=f"{BLOCK}.experts", transposed=True)
ROUTING = Routing(score="sigmoid", normalise=False)
CHUNKED = "chunked_attention"


def program(config: ConfigReader) -> Program:
    decoder, heads, gate = read_decoder(config, name="llama4"), read_heads(config), read_gate(config)
    rope = read_rope(config, head_dim=heads.head_dim, default_theta=5e5, interleaved=True)
    layers, head_norm = read_layers(config), "bare" if config.boolean("use_qk_norm", True) else ""
    turned, scores = read_turned(config, layers), {True: PLAIN_SCORES, False: _read_scores(config)}
    spans, sparse = _read_spans(config, turned), _read_sparse_layers(config, layers)
    bias = "qkvo" if config.boolean("attention_bias", False) else ""
    experts, width = _read_experts(config), config.integer("intermediate_size_mlp", 16384)
    config.ignore("for_llm_compressor")
    x = embed(decoder)
    for layer, turns, span in zip(decoder.layers(layers), turned, spans, strict=True):
        x = attention(
            layer,
            x,
            heads,
            rope if turns else None,
            span=span,
            bias=bias,
            head_norm=head_norm if turns else "",
            scores=scores[turns],
        )
        if layer.number in sparse:
            x = moe(layer, x, experts, gate=gate)
        else:
            x = mlp(layer, x, width, gate=gate, block=BLOCK)
    return decoder.program(head(decoder, x))


def _read_scores(config: ConfigReader) -> AttentionScores:
    """Scores of layers without positions; some configs say 4 for yes."""
    growth, period = config.number("attn_scale", 0.1), config.integer("floor_scale", 8192)
    key = "attn_temperature_tuning"
    tuned = config.value(key)
    config.ignore(key)
    if tuned not in (None, True, False) and not isinstance(tuned, int):
        raise config.refusal(key, tuned, "true or false is needed")
    off = tuned is not None and not tuned
    return (
        PLAIN_SCORES
        if off
        else AttentionScores(temperature=Temperature(growth=growth, period=period, offset=1))
    )


def _read_spans(config: ConfigReader, turned: list[bool]) -> list[Span]:
    """Chunks where layer_types says so, or in layers with positions."""
    types = read_layer_types(config, len(turned), other=CHUNKED)
    whole = [kind == FULL for kind in types] if types else [not turns for turns in turned]
    size = config.integer_or_none("attention_chunk_size", 8192)
    if size is None and not all(whole):
        raise config.refusal("attention_chunk_size", None, "layers of chunks need a size")
    return [CAUSAL if size is None or sees_all else Chunk(size) for sees_all in whole]


def _read_sparse_layers(config: ConfigReader, layers: int) -> set[int]:
    """Which layers have experts."""
    step = config.integer("interleave_moe_layer_step", 1)
    named = config.integers("moe_layers") if config.has("moe_layers") else range(step - 1, layers, step)
    if max(named, default=0) >= layers:
        raise config.refusal("moe_layers", list(named), f"there are {layers} layers")
    return set(named)


def _read_experts(config: ConfigReader) -> Experts:
    count, picks = read_expert_counts(config, "num_local_experts", 16, 1)
    width = config.integer("intermediate_size")
    return Experts(
        count=count,
        picks=picks,
        width=width,
        routing=ROUTING,
        names=NAMES,
        shared=SharedExpert(width=width, tensor=f"{BLOCK}.shared_expert"),
        shares_first=True,
    )
