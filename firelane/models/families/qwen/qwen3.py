"""Qwen3 (Qwen3 report, 2025) and the language model of Qwen3-VL (Qwen3-VL report, 2025): Llama with RMS norms
on each query and key head, and a head size of its own; and rerankers with a head of labels.
"""

from __future__ import annotations

from firelane.models.blocks.blocks import attention, embed, head, mlp
from firelane.models.blocks.decoder_config import read_decoder, read_gate, read_heads, read_partial_windows
from firelane.models.blocks.encoder import encoder_program, last_classified
from firelane.models.blocks.encoder_config import count_labels
from firelane.models.blocks.rope import MROPE, read_rope
from firelane.models.config.reader import ConfigReader
from firelane.program.program import Program

ARCHITECTURES = (
    "Qwen3ForCausalLM",
    "Qwen3VLForConditionalGeneration",
    "Qwen3ForSequenceClassification",
)
DEFAULT_HEAD_DIM = 128


def program(config: ConfigReader) -> Program:
    decoder, gate = read_decoder(config, name="qwen3"), read_gate(config)
    heads = read_heads(config, default_head_dim=DEFAULT_HEAD_DIM)
    rope, spans = read_rope(config, head_dim=heads.head_dim, beside=MROPE), read_partial_windows(config)
    width, bias = config.integer("intermediate_size"), config.boolean("attention_bias", False)
    x = embed(decoder)
    for layer, span in zip(decoder.layers(len(spans)), spans, strict=True):
        x = attention(layer, x, heads, rope, span=span, bias="qkvo" if bias else "", head_norm="each")
        x = mlp(layer, x, width, gate=gate)
    if config.architecture == "Qwen3ForSequenceClassification":
        hidden = last_classified(decoder, x, count_labels(config))
        return encoder_program(decoder, hidden, max_model_len=decoder.max_model_len)
    return decoder.program(head(decoder, x))
