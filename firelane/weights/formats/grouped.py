"""Grouped formats: panels of quantised weights as codes and scales, decoded to bf16 in registers.

A weight is bf16(scale * code - minimum), in float32, rounded once to nearest even; whether a zero has a sign
is left open, for no sum of products depends on it. Where there are minima, scales have so few bits that
products with codes are exact. A panel is 32 outputs by K inputs, K a multiple of the grouping's span; it ends
with zeros to a multiple of 64 bytes, and of each span of inputs it has

    heads      scales, then minima, negated, where the format has them: float32, float16 or bf16 [32 outputs],
               or, of two levels, first the units, float16 [32] (of the minima, negated, too), then int8
               [groups of the span][32] (of the minima too): a scale is the product of both, in float32;
               or, of powers of two, uint8 [32]: how often 2^MOST_POWER is halved
    codes      of 8 bits: for each step of two inputs 64 bytes: int8 [32 outputs][2]
               of 4 bits: for each eight steps uint32 [32 outputs][2], step s in nibble s / 2, odd ones four
               nibbles higher; code + 8 without minima, the code (0 .. 15) with, or its
               place in the codebook
               of 4 bits with powers: for each four steps uint16 [32 outputs][2], step s in nibble s: places
               of 6 bits: for each sixteen steps uint64 [3][32 outputs]: code + 32 of step 5 q + i
               (i = 0 .. 4), input p in bits 12 i + 6 p .. of word q; of step 15, in bits 60 .. 63 of words
               0 and 1 the lower four bits of inputs 0 and 1, of word 2 the upper two of both

This module is the reference, in NumPy; csrc/panels/grouped.h of the CPU backend decodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.bf16 import bf16_bits
from firelane.weights.formats.codebooks import TABLES, Codebook, e4m3, indices
from firelane.weights.formats.codes import F32, Codes, TwoLevelScales
from firelane.weights.formats.formats import PANEL_ROWS, Format, Grouping, Heads, round_up

Bytes = NDArray[np.uint8]
OFFSETS = {4: 8, 6: 32, 8: 0}
"""Added to codes by their bits; to those of four bits where there are no minima."""
SIZES = {Heads.F32: 4, Heads.F16: 2, Heads.BF16: 2, Heads.POWER: 1}
"""Bytes of a number."""
ALIGNMENT_BYTES = 64
"""Bytes that panels are aligned to."""
STEP_OF_NIBBLE = [0, 2, 4, 6, 1, 3, 5, 7]
MOST_SCALE = 1e36
"""The largest scale or minimum: no number is infinite in bf16."""
MOST_POWER = 119
"""The largest power of a scale that is a power of two."""
LEAST_POWER = -126
"""No number is below the normal ones."""


def head_bytes(grouping: Grouping) -> int:
    """Bytes of the head of one span."""
    size = 2 + grouping.span // grouping.group if grouping.heads is Heads.LEVELS else SIZES[grouping.heads]
    return size * PANEL_ROWS * (1 + grouping.minima)


def block_bytes(grouping: Grouping) -> int:
    """Bytes of the block of one span."""
    return head_bytes(grouping) + grouping.span * PANEL_ROWS * grouping.bits // 8


def panel_bytes(format_: Format, k: int) -> int:
    grouping = _grouping(format_)
    return round_up(k // grouping.span * block_bytes(grouping), ALIGNMENT_BYTES)


def fits(format_: Format, k: int) -> bool:
    """Whether a matrix with k inputs can have this format."""
    return format_.grouping is not None and k > 0 and k % format_.grouping.span == 0


def encode(rows: Codes, format_: Format) -> Bytes:
    """Whole panels of rows, fitted() to the format: their bytes. ValueError for scales that are no numbers,
    or too large."""
    grouping = _grouping(format_)
    spans = rows.codes.shape[1] // grouping.span
    shape = (len(rows.codes) // PANEL_ROWS, PANEL_ROWS, spans)
    heads = [_by_output(head, shape) for head in stored_heads(rows, grouping)]
    pack = {4: _codes4, 6: _codes6, 8: _codes8}[grouping.bits]
    pack = _codes4_of_powers if grouping.heads is Heads.POWER else pack
    codes = pack((stored_codes(rows.codes, grouping) + np.int8(code_offset(grouping))).reshape(*shape, -1))
    data = np.concatenate([*heads, codes], axis=2).reshape(shape[0], -1)
    return np.pad(data, ((0, 0), (0, -data.shape[1] % ALIGNMENT_BYTES))).reshape(-1)


def _grouping(format_: Format) -> Grouping:
    assert format_.grouping is not None
    return format_.grouping


def code_offset(grouping: Grouping) -> int:
    """The number that is added to codes when they are stored."""
    is_unsigned = grouping.bits == 4 and (grouping.minima or grouping.book is not Codebook.INT)
    return 0 if is_unsigned else OFFSETS[grouping.bits]


def stored_codes(codes: NDArray[np.int8], grouping: Grouping) -> NDArray[np.int8]:
    """Codes as they are stored: places in the table for integers of one. Raises ValueError for what the
    grouping cannot have."""
    if grouping.bits == 4 and grouping.book in TABLES:
        return indices(codes, grouping.book).view(np.int8)
    if grouping.book is Codebook.E4M3 and ((codes & 127) == 127).any():
        raise ValueError("a weight is not finite")
    return codes


def stored_heads(rows: Codes, grouping: Grouping) -> list[NDArray[Any]]:
    """Numbers in the order in which they are stored, [rows, numbers of all spans]. ValueError for scales that
    are no numbers, too large, or more than these heads can hold."""
    if any(not (np.abs(head) < MOST_SCALE).all() for head in (rows.scales, rows.minima) if head is not None):
        raise ValueError("a scale is not finite")
    if grouping.heads is Heads.POWER:
        return [_powers(rows)]
    if grouping.heads is Heads.LEVELS:
        units = [0 - level.units if i else level.units for i, level in enumerate(rows.levels)]
        return [*(_exact(unit, Heads.F16) for unit in units), *(level.steps for level in rows.levels)]
    numbers = [rows.scales] if rows.minima is None else [rows.scales, 0 - rows.minima]
    return [_exact(number, grouping.heads) for number in numbers]


def _powers(rows: Codes) -> NDArray[np.uint8]:
    """By how many doublings each scale is less than the largest. ValueError for others than powers of two."""
    mantissas, exponents = np.frexp(rows.scales)
    powers = exponents - 1
    known = (mantissas == 0.5) & (powers >= LEAST_POWER) & (powers <= MOST_POWER)
    zero = ~rows.codes.reshape(*rows.scales.shape, -1).any(axis=2)
    if not (known | zero).all():
        raise ValueError(f"a scale is no power of two from 2^{LEAST_POWER} to 2^{MOST_POWER}")
    return np.where(known, MOST_POWER - powers, 0).astype(np.uint8)


def _exact(numbers: F32, heads: Heads) -> NDArray[Any]:
    """ValueError for what these heads cannot hold."""
    if heads is Heads.F32:
        return numbers
    found = bf16_bits(numbers) if heads is Heads.BF16 else numbers.astype(np.float16)
    if not np.array_equal(_widened(found), numbers):
        raise ValueError(f"a scale is no {heads.value} number")
    return found


def _widened(numbers: NDArray[Any]) -> F32:
    if numbers.dtype == np.uint16:
        return (numbers.astype(np.uint32) << 16).view(np.float32)
    return numbers.astype(np.float32)


def _by_output(head: NDArray[Any], shape: tuple[int, int, int]) -> Bytes:
    """[panels, spans, bytes], the numbers of 32 outputs side by side."""
    ordered = np.ascontiguousarray(head.reshape(*shape, -1).transpose(0, 2, 3, 1))
    return ordered.view(np.uint8).reshape(shape[0], shape[2], -1)


def fitted(rows: Codes, grouping: Grouping) -> Codes:
    """The same numbers, to the last bit, as `grouping` has them: scales of larger groups repeated; minima
    where there were none, and then codes of four bits from 0 on."""
    repeats = rows.codes.shape[1] // rows.scales.shape[1] // grouping.group
    scales = np.repeat(rows.scales, repeats, axis=1)
    levels = tuple(
        TwoLevelScales(level.units, np.repeat(level.steps, repeats, axis=1)) for level in rows.levels
    )
    if rows.minima is not None:
        return Codes(rows.codes, scales, np.repeat(rows.minima, repeats, axis=1), levels)
    if not grouping.minima:
        return Codes(rows.codes, scales, None, levels, rows.book)
    offset = OFFSETS[4] if grouping.bits == 4 else 0
    least = tuple(TwoLevelScales(level.units * np.float32(offset), level.steps) for level in levels)
    return Codes(rows.codes + np.int8(offset), scales, scales * np.float32(offset), levels + least)


def _codes8(codes: NDArray[np.int8]) -> Bytes:
    """Bytes of spans from codes [panels, 32, spans, inputs] of eight bits."""
    panels, rows, spans, inputs = codes.shape
    steps = codes.reshape(panels, rows, spans, inputs // 2, 2).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(steps).view(np.uint8).reshape(panels, spans, -1)


def _codes4(codes: NDArray[np.int8]) -> Bytes:
    panels, rows, spans, inputs = codes.shape
    steps = codes.view(np.uint8).reshape(panels, rows, spans, inputs // 16, 8, 2)[..., STEP_OF_NIBBLE, :]
    pairs = steps.reshape(*steps.shape[:4], 4, 2, 2).transpose(0, 2, 3, 1, 6, 4, 5)  # …, row, p, byte, nibble
    joined: NDArray[Any] = pairs[..., 0] | pairs[..., 1] << 4
    return joined.reshape(panels, spans, -1)


def _codes4_of_powers(codes: NDArray[np.int8]) -> Bytes:
    panels, rows, spans, inputs = codes.shape
    steps = codes.view(np.uint8).reshape(panels, rows, spans, inputs // 8, 2, 2, 2)  # …, byte, nibble, p
    pairs = steps.transpose(0, 2, 3, 1, 6, 4, 5)
    joined: NDArray[Any] = pairs[..., 0] | pairs[..., 1] << 4
    return joined.reshape(panels, spans, -1)


def _codes6(codes: NDArray[np.int8]) -> Bytes:
    panels, rows, spans, inputs = codes.shape
    steps = codes.view(np.uint8).reshape(panels, rows, spans, inputs // 32, 16, 2).transpose(0, 2, 3, 4, 1, 5)
    low = steps[:, :, :, :15].reshape(panels, spans, -1, 3, 5, rows, 2).astype(np.uint64)
    shifts = np.arange(0, 60, 6, dtype=np.uint64).reshape(5, 1, 2)
    words = np.bitwise_or.reduce(low << shifts, axis=(4, 6))  # [panels, spans, blocks, 3, rows]
    last = steps[:, :, :, 15].astype(np.uint64)
    top = np.stack([last[..., 0] & 15, last[..., 1] & 15, last[..., 0] >> 4 | last[..., 1] >> 4 << 2], axis=3)
    return np.ascontiguousarray(words | top << np.uint64(60)).view(np.uint8).reshape(panels, spans, -1)


def decode(data: Bytes, format_: Format, k: int) -> NDArray[np.uint16]:
    """The bf16 panels [panels, k/2, 32, 2], as PANEL_BF16. ValueError for bytes that are no whole panels."""
    grouping = _grouping(format_)
    size = panel_bytes(format_, k)
    if not size or len(data) % size:
        raise ValueError(f"{len(data)} bytes are no {format_.value} panels of {k} inputs")
    used = k // grouping.span * block_bytes(grouping)
    whole = data.reshape(len(data) // size, size)[:, :used]
    spans = whole.reshape(len(whole), k // grouping.span, -1)
    at = head_bytes(grouping)
    unpack = {4: _numbers4, 6: _numbers6, 8: _numbers8}[grouping.bits]
    unpack = _numbers4_of_powers if grouping.heads is Heads.POWER else unpack
    numbers = _meant(unpack(np.ascontiguousarray(spans[:, :, at:])), grouping)
    numbers = numbers.reshape(*spans.shape[:2], -1, grouping.group // 2, PANEL_ROWS, 2)
    heads = _stored_heads(np.ascontiguousarray(spans[:, :, :at]), grouping)
    values = numbers * heads[0][:, :, :, None, :, None]
    if grouping.minima:
        values = values + heads[1][:, :, :, None, :, None]
    return bf16_bits(values).reshape(len(spans), k // 2, PANEL_ROWS, 2)


def _meant(codes: F32, grouping: Grouping) -> F32:
    """The numbers of codes as they are packed."""
    if grouping.bits == 4 and grouping.book in TABLES:
        return TABLES[grouping.book][codes.astype(np.uint8)].astype(np.float32)
    if grouping.book is Codebook.E4M3:
        return e4m3()[codes.astype(np.int8).view(np.uint8)]
    return codes - np.float32(code_offset(grouping))


def _stored_heads(heads: Bytes, grouping: Grouping) -> list[F32]:
    """Scales, then negated minima, each [panels, spans, groups, 32]."""
    count, shape = 1 + grouping.minima, (*heads.shape[:2], -1, PANEL_ROWS)
    if grouping.heads is Heads.LEVELS:
        at = 2 * PANEL_ROWS * count
        units = np.ascontiguousarray(heads[:, :, :at]).view(np.float16).reshape(shape).astype(np.float32)
        steps = heads[:, :, at:].view(np.int8).reshape(shape).astype(np.float32)
        halves = np.split(steps, count, axis=2)
        return [units[:, :, i : i + 1] * half for i, half in enumerate(halves)]
    if grouping.heads is Heads.POWER:
        return [np.ldexp(np.float32(1), MOST_POWER - heads.reshape(shape).astype(np.int32))]
    kind = {Heads.F32: np.float32, Heads.F16: np.float16, Heads.BF16: np.uint16}[grouping.heads]
    return np.split(_widened(heads.view(kind).reshape(shape)), count, axis=2)


def _numbers8(codes: Bytes) -> F32:
    """Codes of spans as they are stored, in the order [panels, spans, steps, 32, 2], as all of these."""
    return codes.view(np.int8).astype(np.float32)


def _numbers4(codes: Bytes) -> F32:
    pairs = codes.reshape(*codes.shape[:2], -1, PANEL_ROWS, 2, 4)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:5], 8)
    return np.moveaxis(nibbles[..., np.argsort(STEP_OF_NIBBLE)], 5, 3).astype(np.float32)


def _numbers4_of_powers(codes: Bytes) -> F32:
    pairs = codes.reshape(*codes.shape[:2], -1, PANEL_ROWS, 2, 2)
    nibbles = np.stack([pairs & 15, pairs >> 4], axis=-1).reshape(*pairs.shape[:5], 4)
    return np.moveaxis(nibbles, 5, 3).astype(np.float32)


def _numbers6(codes: Bytes) -> F32:
    words = codes.view(np.uint64).reshape(*codes.shape[:2], -1, 3, PANEL_ROWS)
    shifts = np.arange(0, 60, 6, dtype=np.uint64).reshape(5, 1, 2)
    low = (words[:, :, :, :, None, :, None] >> shifts & 63).reshape(*words.shape[:3], 15, PANEL_ROWS, 2)
    top = words >> np.uint64(60)
    upper = top[:, :, :, 2, :, None] >> np.array([0, 2], np.uint64) & 3
    last = np.stack([top[:, :, :, 0], top[:, :, :, 1]], axis=-1) | upper << np.uint64(4)
    return np.concatenate([low, last[:, :, :, None]], axis=3).astype(np.float32)
