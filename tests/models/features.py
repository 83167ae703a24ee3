"""A program that reads and tells features, of awkward widths, for tests of backends."""

from __future__ import annotations

from dataclasses import replace

from firelane.models.blocks.blocks import Decoder, attention, embed, head, mlp
from firelane.models.blocks.features import read_features
from firelane.program.features import with_hidden, with_streams
from firelane.program.ops import HeadShape, Linear, Rotary, TellFeatures
from firelane.program.program import Program
from firelane.program.values import DType, Rows, Value, Weight
from tests.models.dense import in_halves

WIDTH, READ, LEFT = 104, 88, 40
TOLD = READ + 3 * WIDTH
HIDDEN = TOLD - WIDTH
HEADS = HeadShape(heads=6, kv_heads=2, head_dim=48)
ROPE = in_halves(Rotary(inverse_frequencies=tuple(100.0 ** (-i / 24) for i in range(24))))


def features_program(dtype: DType) -> Program:
    """Adds products with the features that it reads, in two parts, to the embedding. Tells those features,
    the streams behind and in front of its one layer, and the hidden state."""
    decoder = _decoder(dtype)
    parts = [(0, read_features(decoder, LEFT)), (LEFT, read_features(decoder, READ - LEFT, first=LEFT))]
    x = embed(decoder)
    for first, part in parts:
        weight = Weight.stored(f"fc_{first}", (WIDTH, part.width), dtype)
        out = Value(f"joined_{first}", Rows.TOKEN, WIDTH, DType.F32)
        x = decoder.add(Linear(x=part, weight=weight, residual=x, out=out))
    program = _program(decoder, x)
    tells = (TellFeatures(x=part, first=first) for first, part in parts)
    telling = replace(program, ops=(*program.ops[:3], *tells, *program.ops[3:]))
    return with_hidden(with_streams(telling, (1, 0)))


def plain_program(dtype: DType) -> Program:
    decoder = _decoder(dtype)
    return _program(decoder, embed(decoder))


def _decoder(dtype: DType) -> Decoder:
    return Decoder(name="toy", vocab_size=331, max_model_len=512, width=WIDTH, eps=1e-5, dtype=dtype)


def _program(decoder: Decoder, x: Value) -> Program:
    for layer in decoder.layers(1):
        x = attention(layer, x, HEADS, ROPE)
        x = mlp(layer, x, 200)
    return decoder.program(head(decoder, x))
