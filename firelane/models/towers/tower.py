"""ImageTower: what becomes of an image's pixels before a language model reads them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.models.towers.patches import Patches
from firelane.program.images import ImageRows
from firelane.program.program import Program

F32 = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ImageTokens:
    """Ids of the tokens of an image: `start`, then `image` for each row, then `end`."""

    start: int
    image: int
    end: int


@dataclass(frozen=True, kw_only=True)
class ImageTower:
    """Two programs, which read features of each row and tell some. blocks: of patches; what it tells of
    merge * merge neighbours stands in one row of those that `merger` reads, whose rows are the image's."""

    name: str
    blocks: Program
    merger: Program
    patches: Patches
    rows: ImageRows
    tokens: ImageTokens

    @property
    def programs(self) -> tuple[Program, Program]:
        return self.blocks, self.merger

    def joined(self, told: F32) -> F32:
        """Rows for the merger: float32 [n / merge², merge² * width], of what was told of n patches."""
        parts, each = 1 + self.rows.deep, self.patches.merge**2
        rows = told.reshape(len(told) // each, each, parts, -1)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(len(rows), -1)
