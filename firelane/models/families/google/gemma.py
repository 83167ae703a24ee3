"""Keys and norms that the generations of Gemma share."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from firelane.models.blocks.blocks import Decoder, Norms
from firelane.models.blocks.decoder_config import read_decoder
from firelane.models.config.reader import ConfigReader, read_dtype
from firelane.program.ops import GELU_TANH, Gate
from firelane.program.reference_step import rounded
from firelane.program.values import DType

AROUND_ATTENTION = Norms(before="input_layernorm", after="post_attention_layernorm")
AROUND_MLP = Norms(before="pre_feedforward_layernorm", after="post_feedforward_layernorm")


def read_gemma(config: ConfigReader, *, name: str, logits_softcap: float) -> Decoder:
    """The sizes of a decoder; its embedding's factor is rounded to the dtype of the checkpoint."""
    if config.value("use_bidirectional_attention") not in (None, False, "vision"):
        why = "only causal attention of text is supported"
        raise config.refusal("use_bidirectional_attention", config.value("use_bidirectional_attention"), why)
    config.ignore("use_bidirectional_attention")
    scale = rounded_root(config.integer("hidden_size"), read_dtype(config))
    decoder = read_decoder(config, name=name, tied=True)
    return replace(decoder, embed_scale=scale, logits_softcap=logits_softcap, norm_plus=1.0)


def rounded_root(width: int, dtype: DType) -> float:
    """The factor of an embedding, as the checkpoint's dtype holds it."""
    return float(rounded(np.array([math.sqrt(width)], np.float32), dtype)[0])


def read_gemma_gate(config: ConfigReader) -> Gate:
    """Older configs name an exact GELU that the models were never run with."""
    config.ignore("hidden_act")
    config.choice("hidden_activation", "gelu_pytorch_tanh", among=("gelu_pytorch_tanh",))
    return GELU_TANH


def read_scale(config: ConfigReader) -> float:
    """The factor of attention scores."""
    return config.number("query_pre_attn_scalar", 256) ** -0.5
