"""Qwen3 (Qwen3 report, 2025): Llama with RMS norms on each query and key head, and a head size of its own."""

from __future__ import annotations

from dataclasses import replace

from firelane.models.config import ConfigReader
from firelane.models.decoder_config import read_decoder, read_heads, read_partial_windows
from firelane.models.dense import dense_program
from firelane.program.program import Program

ARCHITECTURE = "Qwen3ForCausalLM"
DEFAULT_HEAD_DIM = 128


def program(config: ConfigReader) -> Program:
    spec = read_decoder(
        config, name="qwen3", head_shape=read_heads(config, default_head_dim=DEFAULT_HEAD_DIM)
    )
    bias = config.boolean("attention_bias", False)
    return dense_program(
        replace(spec, qk_norm=True, qkv_bias=bias, output_bias=bias, windows=read_partial_windows(config))
    )
