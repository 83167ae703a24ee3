"""A decoder of any sizes, for tests: all blocks of the dense families, each switched on or off."""

from __future__ import annotations

from dataclasses import dataclass

from firelane.contract.span import CAUSAL, Window
from firelane.models.blocks.blocks import Decoder, attention, embed, head, mlp
from firelane.models.blocks.rope import Rope
from firelane.models.blocks.rotary_layout import RotaryLayout
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


def in_halves(rotary: Rotary) -> Rope:
    """The rotation of whole heads, in a checkpoint that keeps pairs as kernels rotate them."""
    width = 2 * len(rotary.inverse_frequencies)
    return Rope(rotary=rotary, layout=RotaryLayout(width, width))


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
            layer,
            x,
            spec.heads,
            in_halves(spec.rotary),
            span=span,
            bias=bias,
            head_norm="each" if spec.qk_norm else "",
        )
        x = mlp(layer, x, spec.mlp_size, bias=spec.mlp_bias)
    return decoder.program(head(decoder, x))
