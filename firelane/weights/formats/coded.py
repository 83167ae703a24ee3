"""Coded formats: panels of bf16 without loss in 12 or about 11.2 bits a weight, decoded in registers.

A weight has a byte that looks random, kept as it is, and one that takes few values, coded by its distance
from the panel's `base`: a range of seven values; the others, escapes, stand apart. A panel is 32 outputs by
K inputs; a step of it is two inputs, the 64 words [32 outputs][2] of PANEL_BF16. Byte i of a step belongs to
word LANES[i], so that interleaving bytes within 128-bit lanes puts the words in order.

PANEL_CODED4, K a multiple of 4. Coded is the high byte (sign and all but the last bit of the exponent).
Code c of 0 .. 6 stands for base + c, 8 + c for the same with the sign bit, 15 for 0x00, 7 for an escape;
1 <= base <= 0x78.

    64             table: [i] the high byte of code i & 15, 0x7F of an escape
    K/4            for each pair of steps, a byte: the high byte of its escapes where all have the same, 0
                   where there is none, 0x7F where they differ; then zeros to a multiple of 64 bytes
    K/4 times 192  two steps: 64 bytes of codes (low nibble the first step, high nibble the second), 64 low
                   bytes of the first, 64 of the second
    escapes        of pairs whose escapes differ: true high bytes in the order of steps and lanes; then zeros
                   to a multiple of 64 bytes

A pair of steps seldom has more than one escape, so that next to none needs a branch that a processor cannot
foresee: the pair's byte takes the place of the table's entry for escapes.

PANEL_CODED3, K a multiple of 16. Coded is the exponent: code c of 0 .. 6 stands for base + c, 7 for an
escape; base <= 248.

    64             table: [i] = base + (i & 7), 0xFF of an escape
    K/16 times     eight steps: 8 x 24 bytes of codes (of each step eight little-endian groups of 24 bits,
                   group g holds lanes 8 g .. 8 g + 7, three bits each from bit 0 up), 8 x 64 bytes
                   (mantissa << 1 | sign), then the escapes of these steps: exponents by step and lane
    zeros          to a multiple of 64 bytes

`base` leaves the fewest escapes; the lowest such value. All finite weights come back bit for bit; others are
refused (an exponent of 255 is what says "escape" to CODED3's decoders). A range of adjacent values with a
fixed number of bits is what ZipServ uses on GPUs.

This module is the reference, in NumPy; coded_native.py does the same faster.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.formats import PANEL_ROWS, Format, round_up

Bytes = NDArray[np.uint8]
Words = NDArray[np.uint16]

STEP_WORDS = 2 * PANEL_ROWS
TABLE_BYTES = 64
ALIGNMENT_BYTES = 64
OVERREAD_BYTES = 128  # kernels may read so far past the end of a panel
CODES = 7  # values in a range
ESCAPE = 7
ZERO4 = 15
DIFFERENT = 0x7F
BLOCK_STEPS = {Format.PANEL_CODED4: 2, Format.PANEL_CODED3: 8}
BLOCK_BYTES = {Format.PANEL_CODED4: 192, Format.PANEL_CODED3: 704}
BASES = {Format.PANEL_CODED4: range(1, 0x79), Format.PANEL_CODED3: range(249)}
CODE_BYTES3 = 24  # of a step
LANES = np.array([(0 if i % 16 < 8 else 32) + 8 * (i // 16) + i % 8 for i in range(STEP_WORDS)])


def fits(format_: Format, k: int) -> bool:
    """Whether a matrix with k inputs can have this coded format."""
    return format_.is_lossless and k > 0 and k % format_.k_multiple == 0


def panel_bytes(format_: Format, k: int, escapes: int) -> int:
    """The size of a panel that lists so many escapes."""
    blocks = k // (2 * BLOCK_STEPS[format_])
    return round_up(_start_bytes(format_, k) + blocks * BLOCK_BYTES[format_] + escapes, ALIGNMENT_BYTES)


def _start_bytes(format_: Format, k: int) -> int:
    """Bytes before the first block."""
    return TABLE_BYTES + (round_up(k // 4, ALIGNMENT_BYTES) if format_ is Format.PANEL_CODED4 else 0)


def panel_bounds(format_: Format, k: int) -> tuple[int, int]:
    """The least and the most bytes that a panel can take."""
    return panel_bytes(format_, k, 0), panel_bytes(format_, k, PANEL_ROWS * k)


def encode(panels: Words, format_: Format) -> tuple[Bytes, NDArray[np.uint64]]:
    """A matrix [panels, k/2, 32, 2] as PANEL_BF16 -> its bytes, and uint64 [panels + 1]: where each panel
    begins, and the end. ValueError for a k that does not fit, and where a weight is not finite.
    """
    coded = [encode_panel(panel, format_) for panel in panels]
    table = np.cumsum([0, *(len(panel) for panel in coded)], dtype=np.uint64)
    return np.concatenate([*coded, np.empty(0, np.uint8)]), table


def decode(data: Bytes, table: NDArray[np.uint64], format_: Format, k: int) -> Words:
    """The inverse of encode(). ValueError where the bytes are not what encode() could have made."""
    panels = len(table) - 1
    if table[0] != 0 or table[-1] != len(data) or (np.diff(table.astype(np.int64)) <= 0).any():
        raise ValueError(f"the table of {panels} panels does not fit {len(data)} bytes")
    words = np.empty((panels, k // 2, PANEL_ROWS, 2), np.uint16)
    for index in range(panels):
        words[index] = decode_panel(data[int(table[index]) : int(table[index + 1])], format_, k)
    return words


def encode_panel(panel: Words, format_: Format) -> Bytes:
    """[k/2, 32, 2] -> the panel's bytes. ValueError as encode()."""
    k = 2 * len(panel)
    if not fits(format_, k):
        raise ValueError(f"{format_.value} needs a multiple of {format_.k_multiple} inputs, not {k}")
    steps = panel.reshape(-1, STEP_WORDS)[:, LANES]
    if int((steps & 0x7FFF).max()) >= 0x7F80:
        raise ValueError("a weight is not finite")
    return _encode4(steps) if format_ is Format.PANEL_CODED4 else _encode3(steps)


def decode_panel(data: Bytes, format_: Format, k: int) -> Words:
    """The inverse of encode_panel(): [k/2, 32, 2]. ValueError as decode()."""
    least, most = panel_bounds(format_, k)
    if not fits(format_, k) or not least <= len(data) <= most:
        raise ValueError(f"{len(data)} bytes are no {format_.value} panel of {k} inputs")
    steps = _decode4(data, k) if format_ is Format.PANEL_CODED4 else _decode3(data, k)
    words = np.empty_like(steps)
    words[:, LANES] = steps
    return words.reshape(k // 2, PANEL_ROWS, 2)


def best_base(counts: NDArray[np.integer], format_: Format) -> int:
    """The base that leaves the fewest escapes, given how often each coded value occurs: of CODED3 the
    exponents, counts [256]; of CODED4 the high bytes without their sign, counts [128].
    """
    bases = BASES[format_]
    sums = np.cumsum([0, *counts])
    return bases.start + int(np.argmax(sums[bases.start + CODES : bases.stop + CODES] - sums[bases]))


def code_table(format_: Format, base: int) -> Bytes:
    """The 64 bytes that a panel begins with."""
    codes = np.arange(TABLE_BYTES)
    if format_ is Format.PANEL_CODED3:
        return np.where(codes % 8 == ESCAPE, 0xFF, base + codes % 8).astype(np.uint8)
    codes %= 16
    high = base + codes % 8 + 0x80 * (codes >= 8)
    return np.select([codes == ESCAPE, codes == ZERO4], [0x7F, 0], high).astype(np.uint8)


def _encode4(steps: Words) -> Bytes:
    low, high = (steps & 0xFF).astype(np.uint8), (steps >> 8).astype(np.uint8)
    base = best_base(np.bincount((high & 0x7F).ravel(), minlength=128), Format.PANEL_CODED4)
    code = (high & 0x7F) - np.uint8(base)  # below the range: wraps around, to far above it
    other = np.where(high == 0, np.uint8(ZERO4), np.uint8(ESCAPE))
    codes: Bytes = np.where(code < CODES, code | (high >> 4 & 8), other)
    nibbles: Bytes = codes[0::2] | codes[1::2] << np.uint8(4)
    pairs = np.concatenate([nibbles, low[0::2], low[1::2]], axis=1)
    escaped, high = (codes == ESCAPE).reshape(len(pairs), -1), high.reshape(len(pairs), -1)
    shared = _shared_escapes(high, escaped)
    listed = high[escaped & (shared == DIFFERENT)[:, None]]
    start = _padded([code_table(Format.PANEL_CODED4, base), shared])
    return _padded([start, pairs.ravel(), listed])


def _shared_escapes(high: Bytes, escaped: NDArray[np.bool_]) -> Bytes:
    """uint8 [pairs]: what the escapes of each pair of steps have in common."""
    least = np.where(escaped, high, np.uint8(0xFF)).min(axis=1)
    most = np.where(escaped, high, np.uint8(0)).max(axis=1)
    same = np.where(least == most, most, np.uint8(DIFFERENT))
    return np.where(escaped.any(axis=1), same, np.uint8(0))


def _decode4(data: Bytes, k: int) -> Words:
    base, start = _base_of(data, Format.PANEL_CODED4), _start_bytes(Format.PANEL_CODED4, k)
    shared, filling = np.split(data[TABLE_BYTES:start], [k // 4])
    pairs = data[start : start + k // 4 * 192].reshape(-1, 3, STEP_WORDS)
    codes = np.stack([pairs[:, 0] & 15, pairs[:, 0] >> 4], axis=1)
    escaped = codes == ESCAPE
    high = np.where(escaped, shared[:, None, None], code_table(Format.PANEL_CODED4, base)[codes])
    listed = escaped & (shared == DIFFERENT)[:, None, None]
    at, count = start + pairs.size, int(np.count_nonzero(listed))
    _check_end(data, at + count)
    if filling.any():
        raise ValueError("what lies between the escapes of pairs and the first pair is not zero")
    high[listed] = data[at : at + count]
    found = _shared_escapes(*(x.reshape(k // 4, -1) for x in (high, escaped)))
    if not np.array_equal(shared, found) or not high[escaped].all():
        raise ValueError("a pair's byte is not what its escapes have in common")
    words: Words = high.astype(np.uint16) << np.uint16(8) | pairs[:, 1:]
    return words.reshape(-1, STEP_WORDS)


def _encode3(steps: Words) -> Bytes:
    exponents = (steps >> 7).astype(np.uint8)
    rest = (steps << 1 | steps >> 15).astype(np.uint8)
    base = best_base(np.bincount(exponents.ravel(), minlength=256), Format.PANEL_CODED3)
    codes = np.minimum(exponents - np.uint8(base), ESCAPE)
    groups = (codes.reshape(-1, 8).astype("<u4") << np.arange(0, 24, 3, dtype="<u4")).sum(axis=1, dtype="<u4")
    groups = groups.view(np.uint8).reshape(-1, 4)[:, :3].reshape(-1, 8 * CODE_BYTES3)
    blocks = np.concatenate([groups, rest.reshape(len(groups), -1)], axis=1)
    escaped = (codes == ESCAPE).reshape(len(blocks), -1)
    exponents = exponents.reshape(escaped.shape)
    pieces = [code_table(Format.PANEL_CODED3, base)]
    for block, found, where in zip(blocks, exponents, escaped, strict=True):
        pieces += [block, found[where]]
    return _padded(pieces)


def _decode3(data: Bytes, k: int) -> Words:
    base, at = _base_of(data, Format.PANEL_CODED3), TABLE_BYTES
    steps = np.empty((k // 16, 8 * STEP_WORDS), np.uint16)
    for block in steps:
        if at + BLOCK_BYTES[Format.PANEL_CODED3] > len(data):
            raise ValueError("the panel ends in the middle of a block")
        bits = np.unpackbits(data[at : at + 8 * CODE_BYTES3], bitorder="little").reshape(-1, 3)
        codes = bits @ np.array([1, 2, 4], np.uint8)
        rest = data[at + 8 * CODE_BYTES3 : at + BLOCK_BYTES[Format.PANEL_CODED3]].astype(np.uint16)
        exponents, escaped = (codes + np.uint8(base)).astype(np.uint16), codes == ESCAPE
        at += BLOCK_BYTES[Format.PANEL_CODED3]
        count = int(np.count_nonzero(escaped))
        if at + count > len(data):
            raise ValueError("the panel ends in the middle of its escapes")
        exponents[escaped] = data[at : at + count]
        at += count
        block[:] = (rest & 1) << 15 | exponents << 7 | rest >> 1
    _check_end(data, at)
    return steps.reshape(-1, STEP_WORDS)


def _padded(pieces: list[Bytes]) -> Bytes:
    size = sum(len(piece) for piece in pieces)
    return np.concatenate([*pieces, np.zeros(-size % ALIGNMENT_BYTES, np.uint8)])


def _base_of(data: Bytes, format_: Format) -> int:
    base = int(data[0])
    if base not in BASES[format_] or not np.array_equal(data[:TABLE_BYTES], code_table(format_, base)):
        raise ValueError("the panel does not begin with a table of its codes")
    return base


def _check_end(data: Bytes, end: int) -> None:
    if len(data) != round_up(end, ALIGNMENT_BYTES) or data[end:].any():
        raise ValueError(f"the panel's contents end at byte {end} of {len(data)}")
