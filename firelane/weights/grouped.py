"""Grouped formats: panels of quantised weights as codes and scales, decoded to bf16 in registers.

A weight is bf16(scale * code - minimum), in float32, rounded once to nearest even. A panel is 32 outputs by K
inputs, K a multiple of the group; a block of it is one group of inputs:

    32 float32     scales, one an output
    32 float32     minima, negated, where the format has them
    codes          of 8 bits: for each step of two inputs 64 bytes: int8 [32 outputs][2]
                   of 4 bits: for each eight steps uint32 [32 outputs][2], step s in bits 4 s .. 4 s + 3;
                   code + 8 without minima, the code (0 .. 15) with

This module is the reference, in NumPy; csrc/grouped.h of the CPU backend decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.bf16 import bf16_bits
from firelane.weights.codes import Codes
from firelane.weights.formats import PANEL_ROWS, Format, Grouping

Bytes = NDArray[np.uint8]
OFFSET4 = 8
"""Added to codes of four bits without minima."""
MOST_SCALE = 1e36
"""Of a scale or a minimum: no number is infinite in bf16."""


def block_bytes(grouping: Grouping) -> int:
    head = 4 * PANEL_ROWS * (1 + grouping.minima)
    return head + grouping.group * PANEL_ROWS * grouping.bits // 8


def panel_bytes(format_: Format, k: int) -> int:
    grouping = format_.grouping
    assert grouping is not None
    return k // grouping.group * block_bytes(grouping)


def fits(format_: Format, k: int) -> bool:
    """Whether a matrix with k inputs can have this format."""
    return format_.grouping is not None and k > 0 and k % format_.grouping.group == 0


def encode(rows: Codes, format_: Format) -> Bytes:
    """Whole panels of rows, fitted() to the format: their bytes. ValueError for scales that are no numbers,
    or too large."""
    grouping = format_.grouping
    assert grouping is not None
    heads = [rows.scales] if rows.minima is None else [rows.scales, -rows.minima]
    if any(not (np.abs(head) < MOST_SCALE).all() for head in heads):
        raise ValueError("a scale is not finite")
    panels, k = len(rows.codes) // PANEL_ROWS, rows.codes.shape[1]
    blocks = k // grouping.group
    numbers = [h.reshape(panels, PANEL_ROWS, blocks).transpose(0, 2, 1).copy().view(np.uint8) for h in heads]
    pack = _codes4 if grouping.bits == 4 else _codes8
    codes = pack(rows.codes, panels, blocks, grouping)
    return np.concatenate([*numbers, codes], axis=2).reshape(-1)


def fitted(rows: Codes, grouping: Grouping) -> Codes:
    """The same numbers, to the last bit, as `grouping` has them: scales of larger groups repeated; minima
    where there were none, and then codes of four bits from 0 on."""
    repeats = rows.codes.shape[1] // rows.scales.shape[1] // grouping.group
    scales = np.repeat(rows.scales, repeats, axis=1)
    if rows.minima is not None:
        return Codes(rows.codes, scales, np.repeat(rows.minima, repeats, axis=1))
    if not grouping.minima:
        return Codes(rows.codes, scales)
    if grouping.bits == 8:
        return Codes(rows.codes, scales, np.zeros_like(scales))
    return Codes(rows.codes + np.int8(OFFSET4), scales, scales * np.float32(OFFSET4))


def _codes8(codes: NDArray[np.int8], panels: int, blocks: int, grouping: Grouping) -> Bytes:
    steps = codes.reshape(panels, PANEL_ROWS, blocks, grouping.group // 2, 2).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(steps).view(np.uint8).reshape(panels, blocks, -1)


def _codes4(codes: NDArray[Any], panels: int, blocks: int, grouping: Grouping) -> NDArray[Any]:
    unsigned = (codes if grouping.minima else codes + np.int8(OFFSET4)).astype(np.uint8)
    shape = (panels, PANEL_ROWS, blocks, grouping.group // 16, 4, 2, 2)
    pairs = unsigned.reshape(shape).transpose(0, 2, 3, 1, 6, 4, 5)  # …, row, parity, byte, nibble
    return (pairs[..., 0] | pairs[..., 1] << 4).reshape(panels, blocks, -1)


def decode(data: Bytes, format_: Format, k: int) -> NDArray[np.uint16]:
    """The bf16 panels [panels, k/2, 32, 2], as PANEL_BF16. ValueError for bytes that are no whole panels."""
    grouping = format_.grouping
    assert grouping is not None
    size = panel_bytes(format_, k)
    if not size or len(data) % size:
        raise ValueError(f"{len(data)} bytes are no {format_.value} panels of {k} inputs")
    blocks = data.reshape(len(data) // size, k // grouping.group, -1)
    count = 1 + grouping.minima
    heads = np.ascontiguousarray(blocks[:, :, : 128 * count]).view(np.float32)
    heads = heads.reshape(*blocks.shape[:2], count, PANEL_ROWS)
    numbers = _decoded(blocks[:, :, 128 * count :], grouping)  # [panels, blocks, steps, 32, 2]
    values = numbers * heads[:, :, 0, None, :, None]
    if grouping.minima:
        values = values + heads[:, :, 1, None, :, None]
    return bf16_bits(values).reshape(len(blocks), k // 2, PANEL_ROWS, 2)


def _decoded(codes: Bytes, grouping: Grouping) -> NDArray[np.float32]:
    panels, blocks = codes.shape[:2]
    steps = grouping.group // 2
    codes = np.ascontiguousarray(codes)
    if grouping.bits == 8:
        return codes.view(np.int8).reshape(panels, blocks, steps, PANEL_ROWS, 2).astype(np.float32)
    pairs = codes.reshape(panels, blocks, steps // 8, PANEL_ROWS, 2, 4)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(
        panels, blocks, steps // 8, PANEL_ROWS, 2, 8
    )
    ordered = nibbles.transpose(0, 1, 2, 5, 3, 4).reshape(panels, blocks, steps, PANEL_ROWS, 2)
    return ordered.astype(np.float32) - np.float32(0 if grouping.minima else OFFSET4)
