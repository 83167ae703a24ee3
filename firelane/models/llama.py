"""Llama 2 and 3 (Touvron et al., 2023; Llama 3 report, 2024), and the many models that share their
architecture.
"""

from __future__ import annotations

from dataclasses import replace

from firelane.models.config import ConfigReader
from firelane.models.decoder_config import read_decoder
from firelane.models.dense import dense_program
from firelane.program.program import Program

ARCHITECTURE = "LlamaForCausalLM"


def program(config: ConfigReader) -> Program:
    attention_bias = config.boolean("attention_bias", False)
    spec = read_decoder(config, name="llama")
    return dense_program(
        replace(
            spec,
            qkv_bias=attention_bias,
            output_bias=attention_bias,
            mlp_bias=config.boolean("mlp_bias", False),
        )
    )
