"""Codes: rows of a quantised matrix as the checkpoint has them, with a scale for each group of neighbours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
I8 = NDArray[np.int8]


@dataclass(frozen=True)
class Codes:
    """A number is scale * code - minimum in float32, with one scale, and one minimum where there are any, for
    each group of neighbours in a row. codes: [rows, numbers]; scales and minima: [rows, groups]."""

    codes: I8
    scales: F32
    minima: F32 | None = None

    def values(self) -> F32:
        """[rows, numbers]."""
        rows, groups = self.scales.shape
        out = self.codes.reshape(rows, groups, -1).astype(np.float32)
        out *= self.scales[:, :, None]
        if self.minima is not None:
            out -= self.minima[:, :, None]
        return out.reshape(rows, -1)

    def joined(self, rows: int) -> Codes:
        """The same, seen as so many longer rows."""
        minima = None if self.minima is None else self.minima.reshape(rows, -1)
        return Codes(self.codes.reshape(rows, -1), self.scales.reshape(rows, -1), minima)

    def taken(self, rows: NDArray[np.int64]) -> Codes:
        """Rows of these numbers, zeros for -1."""

        def of(array: NDArray[Any]) -> NDArray[Any]:
            found = array[rows]
            found[rows < 0] = 0
            return found

        return Codes(of(self.codes), of(self.scales), None if self.minima is None else of(self.minima))

    def data(self) -> NDArray[np.uint8]:
        """All bytes, to be digested."""
        parts = [self.codes, self.scales, *([] if self.minima is None else [self.minima])]
        return np.concatenate([np.ascontiguousarray(part).view(np.uint8).reshape(-1) for part in parts])


def stacked(parts: Sequence[Codes]) -> Codes:
    """One below the other; all with minima, or none."""
    minima = [part.minima for part in parts if part.minima is not None]
    return Codes(
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima) if minima else None,
    )
