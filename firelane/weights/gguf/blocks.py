"""Decoding of GGUF's block types: rows of quantised numbers as codes, scales and minima.

A number is scale * code - minimum, in float32, with one scale, and one minimum where there are any, for each
group of neighbours in a row. Layouts after ggml's docs and headers (github.com/ggml-org/ggml, ggml-common.h);
scales that are products of two stored numbers (K-quants) are multiplied in float32, as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.codebooks import E2M1_VALUES, IQ4_VALUES
from firelane.weights.formats.codes import Codes, TwoLevelScales
from firelane.weights.formats.formats import Format

U8 = NDArray[Any]
"""Arrays of uint8: shifts of one are uint8, too."""
F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


def decode(kind: str, blocks: U8) -> Codes:
    """Codes of `blocks` [blocks, bytes of one], a row each. Raises KeyError for a type that cannot be
    decoded."""
    return DECODERS[kind](np.ascontiguousarray(blocks))


def _half(blocks: U8, at: int) -> F32:
    """The float16 numbers at byte `at` of each block: [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view(np.float16).astype(np.float32)


def _levels(blocks: U8, at: int, steps: NDArray[Any]) -> TwoLevelScales:
    """Small integers [blocks, groups] times the float16 number at byte `at` of each block."""
    return TwoLevelScales(_half(blocks, at), steps.astype(np.int8))


def _nibbles(data: U8, run: int) -> U8:
    """Numbers of four bits, in runs of `run` bytes: first the low halves of a run, then the high ones."""
    runs = data.reshape(len(data), -1, 1, run)
    return np.concatenate([runs & 15, runs >> 4], axis=2).reshape(len(data), -1)


def _bits(data: U8, count: int) -> U8:
    """Planes of single bits: bit 0 of each of `count` bytes, then bit 1, …: [blocks, 8 * count]."""
    planes = data.reshape(len(data), 1, count) >> np.arange(8, dtype=np.uint8)[:, None]
    return (planes & 1).reshape(len(data), -1)


def _pairs(data: U8, run: int) -> U8:
    """Numbers of two bits, in runs of `run` bytes: the lowest two bits of a run, then the next two, …"""
    runs = data.reshape(len(data), -1, 1, run) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    return (runs & 3).reshape(len(data), -1)


def _fifth(blocks: U8, at: int) -> U8:
    """The fifth bits of 32 numbers, one behind the other in four bytes; in their place, as 16 or 0."""
    return np.unpackbits(blocks[:, at : at + 4], axis=1, bitorder="little") << 4


def _signed(codes: U8, offset: int) -> I8:
    return codes.astype(np.int8) - np.int8(offset)


def _q4_0(b: U8) -> Codes:
    return Codes(_signed(_nibbles(b[:, 2:], 16), 8), _half(b, 0))


def _q4_1(b: U8) -> Codes:
    return Codes(_signed(_nibbles(b[:, 4:], 16), 0), _half(b, 0), -_half(b, 2))


def _q5_0(b: U8) -> Codes:
    return Codes(_signed(_nibbles(b[:, 6:], 16) | _fifth(b, 2), 16), _half(b, 0))


def _q5_1(b: U8) -> Codes:
    return Codes(_signed(_nibbles(b[:, 8:], 16) | _fifth(b, 4), 0), _half(b, 0), -_half(b, 2))


def _q8_0(b: U8) -> Codes:
    return Codes(b[:, 2:].view(np.int8), _half(b, 0))


def _iq4_nl(b: U8) -> Codes:
    return Codes(IQ4_VALUES[_nibbles(b[:, 2:], 16)], _half(b, 0))


def _mxfp4(b: U8) -> Codes:
    """The scale is a power of two: the byte less 127, and one less for codes of twice the number."""
    return Codes(
        E2M1_VALUES[_nibbles(b[:, 1:], 16)], np.ldexp(np.float32(1), b[:, :1].astype(np.int32) - 128)
    )


def _q2_k(b: U8) -> Codes:
    low, high = b[:, :16] & 15, b[:, :16] >> 4
    codes = _signed(_pairs(b[:, 16:80], 32), 0)
    return Codes.of_levels(codes, _levels(b, 80, low), _levels(b, 82, high))


def _q3_k(b: U8) -> Codes:
    """Three bits, of which the highest lie apart, inverted; sixteen scales of six bits less 32."""
    high = 4 - 4 * _bits(b[:, :32], 32).astype(np.int8)
    codes = _signed(_pairs(b[:, 32:96], 32), 0) - high
    low = np.concatenate([b[:, 96:104] & 15, b[:, 96:104] >> 4], axis=1)
    top = np.concatenate([b[:, 104:108] >> shift & 3 for shift in (0, 2, 4, 6)], axis=1)
    return Codes.of_levels(codes, _levels(b, 108, _signed(low | top << 4, 32)))


def _six_bits(b: U8) -> tuple[U8, U8]:
    """Eight scales and eight minima of six bits each, in twelve bytes: four of each whole, with the upper two
    bits of the other four above them."""
    low, mid, mixed = b[:, 0:4], b[:, 4:8], b[:, 8:12]
    scales = np.concatenate([low & 63, mixed & 15 | low >> 6 << 4], axis=1)
    minima = np.concatenate([mid & 63, mixed >> 4 | mid >> 6 << 4], axis=1)
    return scales, minima


def _q4_k(b: U8) -> Codes:
    scales, minima = _six_bits(b[:, 4:16])
    codes = _signed(_nibbles(b[:, 16:], 32), 0)
    return Codes.of_levels(codes, _levels(b, 0, scales), _levels(b, 2, minima))


def _q5_k(b: U8) -> Codes:
    scales, minima = _six_bits(b[:, 4:16])
    codes = _nibbles(b[:, 48:], 32) | _bits(b[:, 16:48], 32) << 4
    return Codes.of_levels(_signed(codes, 0), _levels(b, 0, scales), _levels(b, 2, minima))


def _q6_k(b: U8) -> Codes:
    codes = _nibbles(b[:, :128], 64) | _pairs(b[:, 128:192], 32) << 4
    return Codes.of_levels(_signed(codes, 32), _levels(b, 208, b[:, 192:208].view(np.int8)))


def _iq4_xs(b: U8) -> Codes:
    """Eight scales of six bits less 32: the lower four bits in four bytes, the upper two in two."""
    top = np.ascontiguousarray(b[:, 2:4]).view(np.uint16)
    high = (top >> np.arange(0, 16, 2, dtype=np.uint16) & 3).astype(np.uint8)
    low = np.stack([b[:, 4:8] & 15, b[:, 4:8] >> 4], axis=2).reshape(len(b), 8)
    return Codes.of_levels(IQ4_VALUES[_nibbles(b[:, 8:], 16)], _levels(b, 0, _signed(low | high << 4, 32)))


FORMATS = {
    "Q4_0": Format.PANEL_INT4_F16,
    "Q4_1": Format.PANEL_INT4_F16_MIN,
    "Q5_0": Format.PANEL_INT6_F16,
    "Q5_1": Format.PANEL_INT6_F16_MIN,
    "Q8_0": Format.PANEL_INT8_F16,
    "Q2_K": Format.PANEL_INT4_16_LEVELS_MIN,
    "Q3_K": Format.PANEL_INT4_16_LEVELS,
    "Q4_K": Format.PANEL_INT4_LEVELS_MIN,
    "Q5_K": Format.PANEL_INT6_LEVELS_MIN,
    "Q6_K": Format.PANEL_INT6_16_LEVELS,
    "IQ4_NL": Format.PANEL_IQ4_F16,
    "IQ4_XS": Format.PANEL_IQ4_LEVELS,
    "MXFP4": Format.PANEL_MXFP4,
}
"""The packed format of each type's codes."""
DECODERS: dict[str, Callable[[U8], Codes]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
