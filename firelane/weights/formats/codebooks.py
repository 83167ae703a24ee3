"""Codebooks: the numbers that the codes of quantised weights stand for."""

from __future__ import annotations

from enum import Enum
from functools import cache

import numpy as np
from numpy.typing import NDArray


class Codebook(Enum):
    """INT: codes are the numbers. E2M1, IQ4: sixteen integers, by their four bits; of E2M1 (MXFP4, NVFP4)
    twice the number. E4M3: codes are the bits of eight-bit floats."""

    INT = "int"
    E2M1 = "e2m1"
    IQ4 = "iq4"
    E4M3 = "e4m3"


@cache
def e4m3() -> NDArray[np.float32]:
    """The number of each byte, made when it is first asked for: few models need it. Sign, four bits of
    exponent (bias 7), three of mantissa; no infinities (OCP 8-bit floating point, 2023)."""
    byte = np.arange(256)
    exponent, mantissa = byte >> 3 & 15, byte & 7
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    values = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), normal)
    values = np.where((byte & 127) == 127, np.nan, values)
    return np.where(byte & 128, -values, values).astype(np.float32)


E2M1_VALUES = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
IQ4_VALUES = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
TABLES = {Codebook.E2M1: E2M1_VALUES, Codebook.IQ4: IQ4_VALUES}


def indices(codes: NDArray[np.int8], book: Codebook) -> NDArray[np.uint8]:
    """The four bits of each integer. ValueError for one that the book does not have, but for the zeros of
    padding: scales there are zeros, too."""
    table = TABLES[book]
    found = np.full(256, 255, np.uint8)
    found[0] = 0
    found[table[::-1].view(np.uint8)] = np.arange(15, -1, -1)
    taken = found[codes.view(np.uint8)]
    if (taken == 255).any():
        raise ValueError(f"a code is no {book.value} number")
    return taken
