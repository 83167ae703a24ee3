"""Mistral 7B and its successors of the same shape (Jiang et al., 2023): Llama with a sliding window in every
layer.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.models.config import ConfigReader
from firelane.models.decoder_config import read_decoder
from firelane.models.dense import dense_program
from firelane.program.program import Program

ARCHITECTURE = "MistralForCausalLM"
DEFAULT_WINDOW = 4096  # of configs without the key; later models say null, which means none


def program(config: ConfigReader) -> Program:
    spec = read_decoder(config, name="mistral")
    window = config.integer_or_none("sliding_window", DEFAULT_WINDOW) or 0
    return dense_program(replace(spec, windows=(window,) * len(spec.windows)))
