"""A decoder of any sizes, for tests: all blocks of the dense families, each switched on or off."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks import Decoder, attention, embed, head, mlp
from firelane.program.ops import HeadShape, Rotary
from firelane.program.program import Program
from firelane.program.values import DType


@dataclass(frozen=True, kw_only=True)
class DenseSpec:
    """`windows` has one entry a layer (0: all positions)."""

    name: str
    vocab_size: int
    max_model_len: int
    hidden_size: int
    mlp_size: int
    heads: HeadShape
    rotary: Rotary
    windows: tuple[int, ...]
    norm_eps: float
    dtype: DType
    tied_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


def dense_program(spec: DenseSpec) -> Program:
    decoder = Decoder(
        name=spec.name,
        vocab_size=spec.vocab_size,
        max_model_len=spec.max_model_len,
        width=spec.hidden_size,
        eps=spec.norm_eps,
        dtype=spec.dtype,
        tied=spec.tied_embeddings,
    )
    bias = ("qkv" if spec.qkv_bias else "") + ("o" if spec.output_bias else "")
    x = embed(decoder)
    for layer, window in zip(decoder.layers(len(spec.windows)), spec.windows, strict=True):
        span = Window(window) if window else CAUSAL
        x = attention(
            layer, x, spec.heads, spec.rotary, span=span, bias=bias, head_norm="each" if spec.qk_norm else ""
        )
        x = mlp(layer, x, spec.mlp_size, bias=spec.mlp_bias)
    return decoder.program(head(decoder, x))
