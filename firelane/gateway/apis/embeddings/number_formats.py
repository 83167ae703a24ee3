"""Formats of the numbers in a vector that is sent as bytes. Standard library alone: see vectors.py."""

from __future__ import annotations

import array
import math
import struct
import sys

from firelane.api.embeddings import ByteOrder, NumberFormat

ROUND_UP = 0x7FFF
"""Added to the bits of a float32 whose upper half is to be the nearest bfloat16, and so is the lowest bit
that stays: ties go to even."""
PAST_FLOAT16 = 65520.0
"""From here on a float16 is infinite."""


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
