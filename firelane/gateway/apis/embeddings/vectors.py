"""From an engine's embeddings to answers: the vectors themselves, as JSON or bytes, or how alike they are.

Standard library alone: a gateway starts without NumPy, and a vector has a few thousand numbers.
"""

from __future__ import annotations

import array
import base64
import math
import operator
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from firelane.api.embeddings import (
    ByteOrder,
    EmbeddingItem,
    EmbeddingResponse,
    EmbeddingUsage,
    NumberFormat,
)
from firelane.errors import RequestError
from firelane.telemetry.traces import RequestTimes

_encode = msgspec.json.Encoder().encode
NO_DATA = b'"data":[]'
ROUND_UP = 0x7FFF
"""Added to the bits of a float32 whose upper half is to be the nearest bfloat16, and so is the lowest bit
that stays: ties go to even."""
PAST_FLOAT16 = 65520.0
"""From here on a float16 is infinite."""


class VectorAnswer(Protocol):
    """Made of the vectors of a request's inputs, which come in any order."""

    def add(self, index: int, values: bytes) -> None:
        """The vector of input `index`: little-endian float32."""
        ...

    def body(self, tokens: int, times: RequestTimes) -> bytes:
        """The answer's JSON: all vectors were added. tokens: of all inputs."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class VectorFormat:
    """dimensions: the first so many numbers, None: all. normalize: to length 1, after the cut. kind: of the
    numbers; order: of their bytes in base64.
    """

    dimensions: int | None = None
    normalize: bool = True
    base64: bool = False
    kind: NumberFormat = "float32"
    order: ByteOrder = "native"

    def numbers(self, values: bytes) -> array.array[float]:
        """values: little-endian float32."""
        numbers = swapped(array.array("f", values))[: self.dimensions]
        return normalized(numbers) if self.normalize else numbers

    def item(self, index: int, values: bytes) -> bytes:
        """The JSON of an EmbeddingItem. values: as above."""
        numbers = self.numbers(values)
        if self.base64:
            text = base64.b64encode(as_bytes(numbers, self.kind, self.order)).decode()
            return _encode(EmbeddingItem(index=index, embedding=text))
        return _encode(EmbeddingItem(index=index, embedding=rounded(numbers, self.kind).tolist()))


def check_dimensions(dimensions: int | None, width: int) -> None:
    """Raises RequestError."""
    if dimensions is not None and dimensions > width:
        raise RequestError(
            f"`dimensions` is {dimensions}: this model's vectors have {width}", param="dimensions"
        )


class EmbeddingList:
    """The VectorAnswer of /v1/embeddings. Items are written when their vectors come, not all at the end."""

    def __init__(self, format: VectorFormat, model: str, count: int) -> None:
        self._format = format
        self._model = model
        self._items = [b""] * count

    def add(self, index: int, values: bytes) -> None:
        self._items[index] = self._format.item(index, values)

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        usage = EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens)
        empty = _encode(EmbeddingResponse(data=[], model=self._model, usage=usage))
        return empty.replace(NO_DATA, b'"data":[%b]' % b",".join(self._items), 1)


class Cosines:
    """A VectorAnswer: how alike the inputs of each pair are. A vector is kept while another one needs it.
    write: makes the JSON of all cosines and the number of tokens.
    """

    def __init__(self, pairs: Sequence[tuple[int, int]], write: Callable[[list[float], int], bytes]) -> None:
        self._pairs = pairs
        self._write = write
        self._cosines = [0.0] * len(pairs)
        self._open: dict[int, set[int]] = {}
        for number, pair in enumerate(pairs):
            for index in pair:
                self._open.setdefault(index, set()).add(number)
        self._vectors: dict[int, array.array[float]] = {}

    def add(self, index: int, values: bytes) -> None:
        self._vectors[index] = VectorFormat().numbers(values)
        for number in sorted(self._open[index]):
            one, other = self._pairs[number]
            if one in self._vectors and other in self._vectors:
                products = map(operator.mul, self._vectors[one], self._vectors[other])
                self._cosines[number] = min(1.0, max(-1.0, math.fsum(products)))
                self._done(number, one)
                self._done(number, other)

    def _done(self, number: int, index: int) -> None:
        self._open[index].discard(number)
        if not self._open[index]:
            self._vectors.pop(index, None)

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        return self._write(self._cosines, tokens)


def normalized(numbers: array.array[float]) -> array.array[float]:
    """Scaled to length 1, computed in float64; a vector of zeros stays as it is."""
    length = math.hypot(*numbers)
    if length == 0:
        return numbers
    return array.array("f", [number / length for number in numbers])


def swapped(numbers: array.array[float]) -> array.array[float]:
    """Between little-endian and this machine's order."""
    if sys.byteorder == "big":
        numbers = numbers[:]
        numbers.byteswap()
    return numbers


def as_bytes(numbers: array.array[float], kind: NumberFormat, order: ByteOrder) -> bytes:
    """numbers: float32. order: native is little, as on the machines that the engines run on."""
    mark = ">" if order == "big" else "<"
    if kind == "float16":
        return struct.pack(f"{mark}{len(numbers)}e", *map(_within_float16, numbers))
    if kind == "float32":
        return struct.pack(f"{mark}{len(numbers)}f", *numbers)
    bits = array.array("I", numbers.tobytes())
    halves = array.array("H", [(one + ROUND_UP + (one >> 16 & 1)) >> 16 & 0xFFFF for one in bits])
    if (sys.byteorder == "big") != (order == "big"):
        halves.byteswap()
    return halves.tobytes()


def _within_float16(number: float) -> float:
    return number if abs(number) < PAST_FLOAT16 else math.copysign(math.inf, number)


def rounded(numbers: array.array[float], kind: NumberFormat) -> array.array[float]:
    """The same numbers as the format holds them, as float32."""
    if kind == "float32":
        return numbers
    packed = as_bytes(numbers, kind, "little")
    if kind == "float16":
        return array.array("f", struct.unpack(f"<{len(numbers)}e", packed))
    widened = b"".join(b"\0\0" + packed[i : i + 2] for i in range(0, len(packed), 2))
    return array.array("f", struct.unpack(f"<{len(numbers)}f", widened))
