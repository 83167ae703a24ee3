"""Packed formats: how weights lie in memory for the kernels. N is padded with zero rows, K with zero columns.

    PANEL_BF16     uint16  [N/32][K/2][32][2]   pairs of k beside each other, for the bf16 dot-product
                                                instruction
    PANEL_F32      float32 [N/32][K][32]        K even
    VECTOR_F32     float32 [N]                  N a multiple of 32, so that a kernel may read a panel's whole
                                                width
    PANEL_WINDOW4  uint8, PANEL_BF16's panels one by one without loss in 12 bits a weight and more where
                   weights are unlike the others; K a multiple of 4. See window.py
    PANEL_WINDOW3  the same in 11 bits and more, K a multiple of 16

Interleaved (the weights of GatedLinear, [gate; up]): gate and up are padded to a multiple of 16 rows each and
alternate in groups of 16 (16 gate rows, the 16 up rows of the same outputs, the next 16 gate rows …), so that
one panel of 32 rows makes 16 outputs.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL_ROWS = 32
GROUP_ROWS = 16
FORMAT_VERSION = 3


class Format(Enum):
    PANEL_BF16 = "panel_bf16"
    PANEL_F32 = "panel_f32"
    VECTOR_F32 = "vector_f32"
    PANEL_WINDOW4 = "panel_window4"
    PANEL_WINDOW3 = "panel_window3"

    @property
    def is_window(self) -> bool:
        """Whether panels are coded one by one and differ in size."""
        return self in (Format.PANEL_WINDOW4, Format.PANEL_WINDOW3)

    @property
    def plain(self) -> Format:
        """The format of the same weights when decoded."""
        return Format.PANEL_BF16 if self.is_window else self

    @property
    def k_multiple(self) -> int:
        """What the number of inputs has to be a multiple of."""
        return {Format.PANEL_WINDOW4: 4, Format.PANEL_WINDOW3: 16}.get(self, 1)

    @property
    def dtype(self) -> type[np.generic]:
        if self.is_window:
            return np.uint8
        return np.uint16 if self is Format.PANEL_BF16 else np.float32


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def packed_rows(parts: tuple[int, ...], *, interleave: bool) -> int:
    """Rows after padding."""
    if interleave:
        return 2 * round_up(parts[0], GROUP_ROWS)
    return round_up(sum(parts), PANEL_ROWS)


def packed_shape(format_: Format, rows: int, k: int) -> tuple[int, ...]:
    """The array's shape, of a window format that of the decoded one; `rows` are padded already, k
    (in_features) is not.
    """
    if format_ is Format.VECTOR_F32:
        return (rows,)
    k = round_up(k, 2)
    if format_ is Format.PANEL_F32:
        return (rows // PANEL_ROWS, k, PANEL_ROWS)
    return (rows // PANEL_ROWS, k // 2, PANEL_ROWS, 2)


def source_rows(
    parts: tuple[int, ...], first: int, last: int, *, interleave: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each packed row first .. last - 1 the number of its part, -1 of padding, and its row in there."""
    row = np.arange(first, last)
    if interleave:
        assert parts == (parts[0], parts[0]), f"interleaved parts differ: {parts}"
        group, within = np.divmod(row, 2 * GROUP_ROWS)
        part, source = np.divmod(within, GROUP_ROWS)
        source += group * GROUP_ROWS
        return np.where(source < parts[0], part, -1), source
    starts = np.cumsum([0, *parts])
    part = np.searchsorted(starts, row, side="right") - 1
    return np.where(row < starts[-1], part, -1), row - starts[part]


def to_panels(rows: NDArray[Any]) -> NDArray[Any]:
    """A view of [rows, k] as the panels of PANEL_F32 or, of uint16, of PANEL_BF16; whole panels, k even."""
    panels, k = len(rows) // PANEL_ROWS, rows.shape[1]
    if rows.dtype == np.float32:
        return rows.reshape(panels, PANEL_ROWS, k).transpose(0, 2, 1)
    return rows.reshape(panels, PANEL_ROWS, k // 2, 2).transpose(0, 2, 1, 3)


def from_panels(panels: NDArray[Any]) -> NDArray[Any]:
    """The rows again: the inverse of to_panels()."""
    order = (0, 2, 1) if panels.dtype == np.float32 else (0, 2, 1, 3)
    return panels.transpose(order).reshape(len(panels) * PANEL_ROWS, -1)


def pack(parts: list[NDArray[Any]], format_: Format, *, interleave: bool = False) -> NDArray[Any]:
    """The whole packed array of a weight given as its stacked parts, each [rows, k] or [rows]; the plain way,
    for tests and small weights. Of a window format the array that window.encode() takes.
    """
    counts = tuple(len(part) for part in parts)
    height = packed_rows(counts, interleave=interleave)
    part, source = source_rows(counts, 0, height, interleave=interleave)
    shape = (height,) if parts[0].ndim == 1 else (height, round_up(parts[0].shape[1], 2))
    rows = np.zeros(shape, format_.plain.dtype)
    for number, values in enumerate(parts):
        if values.ndim == 1:
            rows[part == number] = values[source[part == number]]
        else:
            rows[part == number, : values.shape[1]] = values[source[part == number]]
    return rows if rows.ndim == 1 else np.ascontiguousarray(to_panels(rows))


def unpack(
    packed: NDArray[Any], format_: Format, parts: tuple[int, ...], k: int, *, interleave: bool = False
) -> list[NDArray[Any]]:
    """The parts again, bit for bit; the inverse of pack()."""
    rows = packed if format_ is Format.VECTOR_F32 else from_panels(packed)[:, :k]
    part, source = source_rows(parts, 0, len(rows), interleave=interleave)
    out = [np.empty((n, *rows.shape[1:]), rows.dtype) for n in parts]
    for number, values in enumerate(out):
        values[source[part == number]] = rows[part == number]
    return out
