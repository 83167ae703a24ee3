"""Small decoders that take the options of blocks which no plain one does: several a program."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from firelane.contract.span import Window
from firelane.models.blocks.blocks import AttentionScores, Decoder, Norms, attention, embed, head, mlp
from firelane.models.blocks.projections import AttentionTensors
from firelane.program.ops import (
    GELU_TANH,
    Gate,
    HeadNorm,
    HeadShape,
    Op,
    RMSNorm,
    RopeAndCache,
    Rotary,
    Temperature,
)
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from tests.models.dense import in_halves

HEADS = HeadShape(heads=6, kv_heads=2, head_dim=48)
SANDWICH = Norms(before="a", after="b"), Norms(before="c", after="d")
AFTER = Norms(before=None, after="a"), Norms(before=None, after="b")
FUSED = AttentionTensors(qkv=("qkv_proj",))


def rotary(head_dim: int, scale: float = 1.0) -> Rotary:
    frequencies = 10000.0 ** -(np.arange(0, head_dim, 2, dtype=np.float32) / head_dim)
    return Rotary(inverse_frequencies=tuple(float(f) for f in frequencies), scale=scale)


def _decoder(dtype: DType, **options: float) -> Decoder:
    sizes = {"vocab_size": 331, "max_model_len": 512, "width": 104}
    return Decoder(name="options", **sizes, eps=1e-5, dtype=dtype, **options)


def sandwiched(dtype: DType) -> Program:
    """Norms before and after each block, caps of scores and logits, GELU, a scaled embedding."""
    decoder = _decoder(dtype, embed_scale=10.25, logits_softcap=3.0, norm_plus=1.0)
    scores = AttentionScores(scale=0.2, softcap=2.5)
    x = embed(decoder)
    for layer in decoder.layers(2):
        span = Window(20 + 30 * layer.number)
        turn = in_halves(rotary(HEADS.head_dim, 1.3))
        x = attention(layer, x, HEADS, turn, span=span, norms=SANDWICH[0], scores=scores, head_norm="each")
        x = mlp(layer, x, 200, gate=GELU_TANH, norms=SANDWICH[1])
    return decoder.program(head(decoder, x))


def normed_after(dtype: DType) -> Program:
    """Norms after each block alone, of all heads together; sinks; one layer without positions, with a
    temperature; a gate with limits; scaled logits."""
    decoder = _decoder(dtype, logits_scale=0.125)
    warm = AttentionScores(sinks="self_attn.sinks", temperature=Temperature(growth=0.4, period=16, offset=1))
    turned, still = (
        (in_halves(rotary(HEADS.head_dim)), AttentionScores(sinks="self_attn.sinks")),
        (None, warm),
    )
    gate = Gate(alpha=1.702, limit=0.7, up_offset=1.0)
    x = embed(decoder)
    for layer, (turn, scores) in zip(decoder.layers(2), (turned, still), strict=True):
        x = attention(layer, x, HEADS, turn, norms=AFTER[0], scores=scores, head_norm="whole")
        x = mlp(layer, x, 200, gate=gate, norms=AFTER[1])
    return decoder.program(head(decoder, x))


def unweighted(dtype: DType) -> Program:
    """Norms without weights, of values as well, a residual times a scalar, a scaled residual, and fused
    projections."""
    decoder = _decoder(dtype, residual_scale=0.22)
    x = embed(decoder)
    for layer in decoder.layers(2):
        norms = BEFORE_THEN_SCALED if layer.number else None
        more = {} if norms is None else {"norms": norms}
        x = attention(layer, x, HEADS, in_halves(rotary(HEADS.head_dim)), bias="qkvo", tensors=FUSED, **more)
        x = mlp(layer, x, 200, gate=Gate(alpha=1.5), bias=True, fused="gate_up", **more)
    program = decoder.program(head(decoder, x))
    return replace(program, ops=tuple(_bare(op) for op in program.ops))


BEFORE_THEN_SCALED = Norms(before="a", after="b")


def _bare(op: Op) -> Op:
    """The op with norms without weights; sums that a norm ends are times a scalar."""
    if isinstance(op, RopeAndCache):
        return replace(op, norm=HeadNorm(q=None, k=None, eps=1e-5, values=True))
    if isinstance(op, RMSNorm) and op.residual is not None:
        return replace(op, weight=None, scalar=Weight.stored(f"{op.out.name}.scalar", (1,), DType.F32))
    return op


OPTIONS = {"sandwiched": sandwiched, "normed-after": normed_after, "unweighted": unweighted}
