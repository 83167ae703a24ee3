"""Patches: from the pixels of an image to the rows that an encoder reads."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.program.ops.merge_rows import PLACE_WIDTH, PLACED

F32 = NDArray[np.float32]
U8 = NDArray[np.uint8]
CHANNELS = 3


@dataclass(frozen=True, kw_only=True)
class Patches:
    """Squares of size * size pixels, in the order of the merge * merge squares that become one row. An image
    is `frames` equal pictures of a video. table_side: of the square table of positions, which is stretched to
    the image. mean, std: of each channel, of numbers from 0 to 1. min_pixels, max_pixels: of an image as the
    encoder sees it, whose sides are multiples of `factor`."""

    size: int
    merge: int
    frames: int
    table_side: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """Pixels of a side of what becomes one row of the language model."""
        return self.size * self.merge

    @property
    def patch_width(self) -> int:
        """Numbers of a patch."""
        return CHANNELS * self.frames * self.size**2

    @property
    def width(self) -> int:
        """Numbers of a row: its places (merge_rows.py), its patch, its weights of the table."""
        return PLACE_WIDTH + self.patch_width + self.table_side**2

    @property
    def most(self) -> int:
        """Patches of the largest image."""
        return self.max_pixels // self.size**2

    def rows(self, pixels: U8) -> F32:
        """float32 [patches, width] of an image: uint8 [height, width, 3]."""
        height, width = (side // self.size for side in pixels.shape[:2])
        row, column = (self._in_order(axis) for axis in np.mgrid[:height, :width])
        out = np.zeros((height * width, self.width), np.float32)
        out[:, 0], out[:, 2], out[:, 3] = PLACED, row, column
        out[:, PLACE_WIDTH : PLACE_WIDTH + self.patch_width] = self._patches(pixels)
        table = out[:, PLACE_WIDTH + self.patch_width :]
        for (tap_y, y), (tap_x, x) in self._taps(row, column, height, width):
            np.add.at(table, (np.arange(len(out)), tap_y * self.table_side + tap_x), y * x)
        return out

    def _in_order(self, grid: NDArray[np.int64]) -> NDArray[np.int64]:
        """[rows, columns], as the encoder sees them."""
        rows, columns = (side // self.merge for side in grid.shape)
        return grid.reshape(rows, self.merge, columns, self.merge).transpose(0, 2, 1, 3).reshape(-1)

    def _patches(self, pixels: U8) -> F32:
        """[patches, channels, frames, rows, columns], as one row each."""
        scale = 255 * np.array(self.std)
        numbers = ((pixels - 255 * np.array(self.mean)) / scale).astype(np.float32)
        rows, columns = (side // self.factor for side in pixels.shape[:2])
        seen = numbers.reshape(rows, self.merge, self.size, columns, self.merge, self.size, CHANNELS)
        order = seen.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, CHANNELS, 1, self.size**2)
        return np.repeat(order, self.frames, axis=2).reshape(len(order), -1)

    def _taps(
        self, row: NDArray[np.int64], column: NDArray[np.int64], height: int, width: int
    ) -> list[tuple[tuple[NDArray[np.int64], F32], tuple[NDArray[np.int64], F32]]]:
        """Rows and columns of the table, with their weights: bilinear, corners upon corners."""
        ys, xs = (self._axis(place, side) for place, side in ((row, height), (column, width)))
        return [(y, x) for y in ys for x in xs]

    def _axis(self, place: NDArray[np.int64], side: int) -> list[tuple[NDArray[np.int64], F32]]:
        last = self.table_side - 1
        at = place.astype(np.float32) * np.float32(last) / np.float32(max(1, side - 1))
        low = np.minimum(at.astype(np.int64), last)
        share = at - low
        return [(low, 1 - share), (np.minimum(low + 1, last), share)]
