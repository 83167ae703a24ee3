"""Qwen2 and Qwen2.5 (Qwen2 report, 2024): Llama with biases on q, k and v, and optional windows in the upper
layers; and MiMo-7B (MiMo report, 2025), which has the same layers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from firelane.contract.span import CAUSAL, Span
from firelane.models.blocks.blocks import Decoder, Layer, attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_partial_windows
from firelane.models.blocks.rope import read_rope
from firelane.models.config.reader import ConfigReader
from firelane.models.heads.draft_head import DraftHead
from firelane.models.heads.mtp import PredictingLayer, PredictorNames, count_predictors, predictor_of
from firelane.program.program import Program
from firelane.program.values import Value

ARCHITECTURES = ("Qwen2ForCausalLM", "MiMoForCausalLM")
PREDICTORS = "model.mtp_layers"
"""Tensors of MiMo's layers that predict tokens."""


def program(config: ConfigReader) -> Program:
    decoder, block = _read(config)
    spans = read_partial_windows(config)
    x = embed(decoder)
    for layer, span in zip(decoder.layers(len(spans)), spans, strict=True):
        x = block(layer, x, span)
    return replace(decoder.program(head(decoder, x)), left_out=(f"{PREDICTORS}.",))


def predictor(config: ConfigReader) -> DraftHead:
    """MiMo's."""
    decoder, block = _read(config)
    numbers = range(count_predictors(config, "num_nextn_predict_layers"))
    places = ((number, f"{PREDICTORS}.{number}") for number in numbers)
    layers = [PredictingLayer(number=n, prefix=place, names=_names(place)) for n, place in places]
    return predictor_of(decoder, layers, block)


def _names(place: str) -> PredictorNames:
    return PredictorNames(
        embedding=f"{place}.token_layernorm",
        hidden=f"{place}.hidden_layernorm",
        join=f"{place}.input_proj",
        norm=f"{place}.final_layernorm",
        hidden_first=True,
    )


def _read(config: ConfigReader) -> tuple[Decoder, Callable[..., Value]]:
    """The decoder without ops, and what adds one of its layers, with attention of a span."""
    decoder, heads, gate = read_decoder(config, name="qwen2"), read_heads(config), read_gate(config)
    rope, width = read_rope(config, head_dim=heads.head_dim), config.integer("intermediate_size")
    if config.architecture == "MiMoForCausalLM":
        config.only("attention_bias", True)
    config.only("use_mrope", False)

    def block(layer: Layer, x: Value, span: Span = CAUSAL) -> Value:
        x = attention(layer, x, heads, rope, span=span, bias="qkv")
        return mlp(layer, x, width, gate=gate)

    return decoder, block
