"""From an engine's embedding to the JSON of one item of an answer.

Standard library alone: a gateway starts without NumPy, and a vector has a few thousand numbers.
"""

from __future__ import annotations

import array
import base64
import math
import sys
from dataclasses import dataclass

import msgspec

from firelane.api.embeddings import EmbeddingItem

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorFormat:
    """dimensions: the first so many numbers, None: all. normalize: to length 1, after the cut."""

    dimensions: int | None = None
    normalize: bool = True
    base64: bool = False

    def item(self, index: int, values: bytes) -> bytes:
        """The JSON of an EmbeddingItem. values: little-endian float32."""
        numbers = _swapped(array.array("f", values))[: self.dimensions]
        if self.normalize:
            numbers = normalized(numbers)
        if self.base64:
            text = base64.b64encode(_swapped(numbers).tobytes()).decode()
            return _encode(EmbeddingItem(index=index, embedding=text))
        return _encode(EmbeddingItem(index=index, embedding=numbers.tolist()))


def normalized(numbers: array.array[float]) -> array.array[float]:
    """Scaled to length 1, computed in float64; a vector of zeros stays as it is."""
    length = math.hypot(*numbers)
    if length == 0:
        return numbers
    return array.array("f", [number / length for number in numbers])


def _swapped(numbers: array.array[float]) -> array.array[float]:
    """Between little-endian and this machine's order."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers
