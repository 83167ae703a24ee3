"""Features that a head which drafts reads of the model that it drafts for."""

from __future__ import annotations

from firelane.models.blocks.blocks import Decoder
from firelane.program.ops import ReadFeatures
from firelane.program.values import DType, Rows, Value


def read_features(decoder: Decoder, width: int, dtype: DType | None = None, *, first: int = 0) -> Value:
    """Features of each token row: `width` numbers of `dtype`, by default that of the matrices, from number
    `first` on. Each number once in a program."""
    out = Value(f"features_{first}", Rows.TOKEN, width, dtype or decoder.dtype)
    return decoder.add(ReadFeatures(first=first, out=out))
