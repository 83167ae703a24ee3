"""Codes: rows of a quantised matrix as the checkpoint has them, with a scale for each group of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.codebooks import Codebook, e4m3

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


@dataclass(frozen=True)
class TwoLevelScales:
    """Products that scales or minima are: of a float16 number for many groups and a small integer for each,
    rounded to float32 where that is needed at all. units: [rows, blocks]; steps: [rows, groups]."""

    units: F32
    steps: I8

    def products(self) -> F32:
        """[rows, groups]."""
        rows, blocks = self.units.shape
        steps = self.steps.reshape(rows, blocks, -1).astype(np.float32)
        return (self.units[:, :, None] * steps).reshape(rows, -1)

    def joined(self, rows: int) -> TwoLevelScales:
        return TwoLevelScales(self.units.reshape(rows, -1), self.steps.reshape(rows, -1))

    def taken(self, rows: NDArray[np.int64]) -> TwoLevelScales:
        return TwoLevelScales(_taken(self.units, rows), _taken(self.steps, rows))

    def cut(self, columns: range, size: int, width: int) -> TwoLevelScales | None:
        """The codes of groups of `size` numbers, of `width` in all; None where a block would be cut
        through."""
        block = width // self.units.shape[1]
        if columns.start % block or columns.stop % block:
            return None
        return TwoLevelScales(
            _columns(self.units, block, width, columns), _columns(self.steps, size, width, columns)
        )


@dataclass(frozen=True)
class Codes:
    """A number is scale * code - minimum in float32, with one scale, and one minimum where there are any, for
    each group of neighbours in a row. codes: [rows, numbers]; scales and minima: [rows, groups]. levels: of
    the scales, and of the minima if there are any, where the checkpoint has both as products. book: what
    codes stand for; of those in tables codes are the integers."""

    codes: I8
    scales: F32
    minima: F32 | None = None
    levels: tuple[TwoLevelScales, ...] = ()
    book: Codebook = Codebook.INT

    @classmethod
    def of_levels(cls, codes: I8, scales: TwoLevelScales, minima: TwoLevelScales | None = None) -> Codes:
        if minima is None:
            return cls(codes, scales.products(), None, (scales,))
        return cls(codes, scales.products(), minima.products(), (scales, minima))

    def values(self) -> F32:
        """[rows, numbers]."""
        rows, groups = self.scales.shape
        codes = e4m3()[self.codes.view(np.uint8)] if self.book is Codebook.E4M3 else self.codes
        out = codes.reshape(rows, groups, -1).astype(np.float32)
        out *= self.scales[:, :, None]
        if self.minima is not None:
            out -= self.minima[:, :, None]
        return out.reshape(rows, -1)

    def joined(self, rows: int) -> Codes:
        """The same, seen as so many longer rows."""
        minima = None if self.minima is None else self.minima.reshape(rows, -1)
        levels = tuple(level.joined(rows) for level in self.levels)
        return Codes(self.codes.reshape(rows, -1), self.scales.reshape(rows, -1), minima, levels, self.book)

    def taken(self, rows: NDArray[np.int64]) -> Codes:
        """Rows of these numbers, zeros for -1."""
        minima = None if self.minima is None else _taken(self.minima, rows)
        levels = tuple(level.taken(rows) for level in self.levels)
        return Codes(_taken(self.codes, rows), _taken(self.scales, rows), minima, levels, self.book)

    def cut(self, columns: range) -> Codes:
        """These numbers of each row. Groups that the cut goes through become smaller ones of one scale each;
        levels stay where it goes through no block that shares a unit."""
        width = self.codes.shape[1]
        size = gcd(width // self.scales.shape[1], columns.start, columns.stop)
        scales = _columns(self.scales, size, width, columns)
        minima = None if self.minima is None else _columns(self.minima, size, width, columns)
        levels = tuple(level.cut(columns, size, width) for level in self.levels)
        kept = tuple(level for level in levels if level is not None)
        return Codes(self.codes[:, columns.start : columns.stop], scales, minima, kept, self.book)

    def data(self) -> NDArray[np.uint8]:
        """All bytes, to be digested."""
        parts = [self.codes, self.scales, *([] if self.minima is None else [self.minima])]
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in parts])


def _columns(array: NDArray[Any], size: int, width: int, columns: range) -> NDArray[Any]:
    """Values of `array` for each group of `size` of these numbers; it has them for larger groups of all
    numbers."""
    each = width // array.shape[1] // size
    return np.repeat(array, each, axis=1)[:, columns.start // size : columns.stop // size]


def _taken(array: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[Any]:
    found = array[rows]
    found[rows < 0] = 0
    return found


def stacked(parts: Sequence[Codes]) -> Codes:
    """One below the other; all with minima, or none. Levels are kept where all have them."""
    minima = [part.minima for part in parts if part.minima is not None]
    leveled = all(part.levels for part in parts)
    return Codes(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima) if minima else None,
        tuple(map(_stacked, zip(*(part.levels for part in parts), strict=True))) if leveled else (),
        parts[0].book,
    )


def _stacked(levels: Sequence[TwoLevelScales]) -> TwoLevelScales:
    return TwoLevelScales(
        np.concatenate([level.units for level in levels]),
        np.concatenate([level.steps for level in levels]),
    )
