"""A decoder of any sizes with latent attention, for tests of kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from firelane.contract.span import CAUSAL, Chunk, Span, Window
from firelane.models.blocks.blocks import Decoder, embed, head, mlp
from firelane.models.blocks.indexer import Indexer
from firelane.models.blocks.latent import LatentShape, latent
from firelane.models.blocks.rope import Rope, widened
from firelane.models.blocks.rotary_layout import RotaryLayout
from firelane.program.ops import Attention, Rotary, Temperature
from firelane.program.program import Program
from firelane.program.values import DType, Weight

AWKWARD = LatentShape(heads=5, rank=32, query_rank=44, nope=20, rope=16, value=28)
MANY = LatentShape(heads=37, rank=48, query_rank=0, nope=18, rope=16, value=20)


@dataclass(frozen=True, kw_only=True)
class LatentSpec:
    """`spans` has one entry a layer. topk: positions that a token reads, chosen by an indexer in every other
    layer; 0: all of the span."""

    shape: LatentShape = AWKWARD
    dtype: DType = DType.BF16
    spans: tuple[Span, ...] = (CAUSAL, CAUSAL)
    turned: bool = True
    temperature: Temperature | None = None
    softcap: float = 0.0
    sinks: bool = False
    topk: int = 0
    max_model_len: int = 512


def latent_program(spec: LatentSpec) -> Program:
    sizes = {"vocab_size": 331, "max_model_len": spec.max_model_len, "width": 104}
    decoder = Decoder(name="latents", **sizes, eps=1e-5, dtype=spec.dtype)
    x = embed(decoder)
    for layer in decoder.layers(len(spec.spans)):
        rope = interleaved(spec.shape.rope) if spec.turned else None
        x = latent(layer, x, spec.shape, rope, temperature=spec.temperature, indexer=_indexer(spec))
        x = mlp(layer, x, 200)
    program = decoder.program(head(decoder, x))
    left = iter(spec.spans)
    ops = tuple(_changed(op, next(left), spec) if isinstance(op, Attention) else op for op in program.ops)
    return replace(program, ops=ops)


def _indexer(spec: LatentSpec) -> Indexer | None:
    """Nine heads, of which a part turns."""
    if not spec.topk:
        return None
    full = [number % 2 == 0 for number in range(len(spec.spans))]
    rope = widened(interleaved(spec.shape.rope), 48, interleaved=False)
    return Indexer(heads=9, head_dim=48, topk=spec.topk, full=full, rope=rope)


def interleaved(width: int) -> Rope:
    frequencies = 100.0 ** -(np.arange(0, width, 2, dtype=np.float32) / width)
    rotary = Rotary(inverse_frequencies=tuple(float(f) for f in frequencies))
    return Rope(rotary=rotary, layout=RotaryLayout(width, width, interleaved=True), mscale=1.1)


def _changed(op: Attention, span: Span, spec: LatentSpec) -> Attention:
    name = f"layers.{op.layer}.sinks"
    sinks = Weight.stored(name, (spec.shape.heads,), DType.F32) if spec.sinks else None
    return replace(op, span=span, softcap=spec.softcap, sinks=sinks)


LATENT_SPECS = {
    "bf16-latent": LatentSpec(spans=(CAUSAL, Window(20)), temperature=Temperature(growth=0.4, period=16)),
    "f32-latent": LatentSpec(shape=MANY, dtype=DType.F32, spans=(Chunk(24), CAUSAL)),
}
LATENT_SPECS_HERE = {
    "bf16-latent-many": LatentSpec(shape=MANY, turned=False, softcap=2.5, sinks=True),
    "f32-latent-still": LatentSpec(dtype=DType.F32, turned=False, softcap=2.5, sinks=True),
}
CHOSEN_SPECS = {
    "bf16-latent-chosen": LatentSpec(topk=40),
    "f32-latent-chosen": LatentSpec(topk=18, dtype=DType.F32, spans=(CAUSAL,)),
}
"""With an indexer."""
