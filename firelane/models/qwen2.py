"""Qwen2 and Qwen2.5 (Qwen2 report, 2024): Llama with biases on q, k and v, and optional windows in the upper
layers.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.models.config import ConfigReader
from firelane.models.decoder_config import read_decoder, read_partial_windows
from firelane.models.dense import dense_program
from firelane.program.program import Program

ARCHITECTURE = "Qwen2ForCausalLM"


def program(config: ConfigReader) -> Program:
    spec = read_decoder(config, name="qwen2")
    return dense_program(replace(spec, qkv_bias=True, windows=read_partial_windows(config)))
