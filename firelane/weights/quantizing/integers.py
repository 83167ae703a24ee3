"""Integer codes of 4 and 8 bits, with the scale of each group that has the least squared error of some.

The largest number of a group, times a ratio, is what the largest code stands for; each ratio of a list is
tried, and of equals the first is taken. Scales are rounded to bf16 before codes are made. All arithmetic is
in float32 in a fixed order: this module is the reference, and csrc/quantize.cpp gives the same bits, faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codes import Codes
from firelane.weights.quantizing.native import QuantizeLibrary
from firelane.weights.quantizing.schemes import Scheme

F32 = NDArray[np.float32]
LANES = 16
"""Partial sums of the squared error of a group."""
LEAST = np.float32(2.0**-100)
"""The least scale: numbers of smaller groups are zeros."""


def quantize_integers(values: F32, scheme: Scheme, library: QuantizeLibrary | None = None) -> Codes:
    """Rows [rows, k] that the scheme fits. ValueError for numbers that are not finite."""
    rows, k = values.shape
    group = scheme.group or k
    groups = np.ascontiguousarray(values, np.float32).reshape(-1, group)
    ratios = np.array(scheme.ratios, np.float32)
    make = library.integers if library is not None else integers
    codes, scales = make(groups, scheme.bits, ratios)
    return Codes(codes.reshape(rows, k), scales.reshape(rows, k // group))


def integers(groups: F32, bits: int, ratios: F32) -> tuple[NDArray[np.int8], F32]:
    """groups: [groups, numbers]; codes of the same shape, and a scale for each."""
    largest = np.abs(groups).max(axis=1)
    if not np.isfinite(largest).all():
        raise ValueError("a weight is not finite")
    base = largest / np.float32((1 << (bits - 1)) - 1)
    best, scales = np.full(len(groups), np.inf, np.float32), np.zeros(len(groups), np.float32)
    codes = np.zeros(groups.shape, np.int8)
    for ratio in ratios:
        scale = widened(bf16_bits(base * ratio))
        scale[scale < LEAST] = 0
        found = _codes(groups, scale, bits)
        error = _squared_error(np.subtract(groups, found * scale[:, None], dtype=np.float32))
        better = error < best
        best[better], scales[better], codes[better] = error[better], scale[better], found[better]
    return codes, scales


def _codes(groups: F32, scales: F32, bits: int) -> F32:
    """To the nearest, ties to even, within the codes that there are; zeros where the scale is."""
    half = np.float32(1 << (bits - 1))
    inverse = np.zeros_like(scales)
    np.divide(np.float32(1), scales, out=inverse, where=scales > 0)
    return np.rint(np.clip(groups * inverse[:, None], -half, half - 1))


def _squared_error(apart: F32) -> F32:
    """Sums in LANES lanes, one number of each after the other, then of lanes far apart."""
    squares = apart * apart
    count, size = squares.shape
    padded = np.zeros((count, -(-size // LANES) * LANES), np.float32)
    padded[:, :size] = squares
    lanes = np.zeros((count, LANES), np.float32)
    for at in range(0, padded.shape[1], LANES):
        lanes += padded[:, at : at + LANES]
    while lanes.shape[1] > 1:
        lanes = lanes[:, : lanes.shape[1] // 2] + lanes[:, lanes.shape[1] // 2 :]
    return lanes[:, 0]
