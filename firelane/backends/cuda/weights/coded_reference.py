"""The coded form in NumPy: what kernels/pack.py has to make, bit for bit, and tests are held against.

Matrices here are bits of bf16, uint16 [padded rows, padded k], finite. See matrices.py for the form.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.weights.matrices import BASES, ESCAPE_SHARE, MAX_BLOCK_ESCAPES, RANGE, ROW_SHIFT

Bits = NDArray[np.uint16]
Bytes = NDArray[np.uint8]
INPUT_MASK = (1 << ROW_SHIFT) - 1


@dataclass(frozen=True, kw_only=True)
class SplitMatrix:
    """A matrix apart. bits: what is left, escapes are +0; bases: uint8 [blocks]; starts, where, values: as
    Escapes, values the bits of bf16, both without room to spare.
    """

    bits: Bits
    bases: Bytes
    starts: NDArray[np.int32]
    where: NDArray[np.int32]
    values: Bits


def exponent_counts(bits: Bits) -> NDArray[np.int64]:
    """Counts of how often each exponent occurs in each block: [blocks, 256]; [:, 0] counts denormals, zeros
    never count."""
    blocks = bits.reshape(-1, ROW_BLOCK * bits.shape[1])
    counts = [np.bincount((block[block & 0x7FFF != 0] >> 7) & 0xFF, minlength=256) for block in blocks]
    return np.stack(counts).astype(np.int64)


def best_bases(counts: NDArray[np.int64]) -> tuple[Bytes, NDArray[np.int64]]:
    """By block the base with the fewest escapes, the lowest such one, and how many escapes that leaves."""
    before = np.concatenate([np.zeros((len(counts), 1), np.int64), np.cumsum(counts, axis=1)], axis=1)
    inside = before[:, 1 + RANGE : 1 + RANGE + BASES] - before[:, 1 : 1 + BASES]
    bases = inside.argmax(axis=1)  # the first of several
    escapes = before[:, -1] - np.take_along_axis(inside, bases[:, None], axis=1)[:, 0]
    return bases.astype(np.uint8), escapes


def has_range(escapes: NDArray[np.int64], size: int) -> bool:
    """Whether a matrix of `size` entries, padding included, has one; `escapes`: of each block."""
    return bool(escapes.sum() <= size // ESCAPE_SHARE and escapes.max(initial=0) <= MAX_BLOCK_ESCAPES)


def split(bits: Bits) -> SplitMatrix | None:
    """The matrix and its escapes, or None where it has no range: then every weight stays in its place."""
    bases, counts = best_bases(exponent_counts(bits))
    if not has_range(counts, bits.size):
        return None
    outside = (_codes(bits, bases) == 0) & (bits & 0x7FFF != 0)
    rows, inputs = np.nonzero(outside)  # by row, then input: by block, too
    return SplitMatrix(
        bits=np.where(outside, np.uint16(0), bits),
        bases=bases,
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        where=(rows % ROW_BLOCK << ROW_SHIFT | inputs).astype(np.int32),
        values=bits[outside],
    )


def join(bits: Bits, starts: NDArray[np.int32], where: NDArray[np.int32], values: Bits) -> Bits:
    """The original matrix: the inverse of split()."""
    count = int(starts[-1])
    blocks = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    out = bits.copy()
    out[blocks * ROW_BLOCK + (where[:count] >> ROW_SHIFT), where[:count] & INPUT_MASK] = values[:count]
    return out


def encode(bits: Bits, bases: Bytes) -> tuple[Bytes, Bytes]:
    """low and codes of a matrix without escapes."""
    codes = _codes(bits, bases)
    sign, mantissa = bits >> 15 << 7, bits & 0x7F
    low = (sign | np.where(codes == 0, np.uint16(0), mantissa)).astype(np.uint8)
    tiles = codes.reshape(len(codes), -1, 2, K_TILE // 2)
    both = tiles[:, :, 0] | tiles[:, :, 1] << 4
    return low, both.astype(np.uint8).reshape(len(codes), -1)


def decode(low: Bytes, codes: Bytes, bases: Bytes) -> Bits:
    """The matrix without escapes: the inverse of encode()."""
    pairs = codes.reshape(len(codes), -1, 1, K_TILE // 2)
    each = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(low.shape).astype(np.uint16)
    exponents = np.where(each == 0, np.uint16(0), each + _by_row(bases))
    wide = low.astype(np.uint16)
    return (wide >> 7 << 15 | exponents << 7 | wide & 0x7F).astype(np.uint16)


def _codes(bits: Bits, bases: Bytes) -> Bytes:
    """uint8 [rows, k]: 1 .. 15 inside the range, 0 of all others."""
    distance = (bits >> 7 & 0xFF).astype(np.int32) - _by_row(bases)
    return np.where((distance >= 1) & (distance <= RANGE), distance, 0).astype(np.uint8)


def _by_row(bases: Bytes) -> NDArray[np.uint16]:
    return np.repeat(bases.astype(np.uint16), ROW_BLOCK)[:, None]
