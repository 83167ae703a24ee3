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

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

PANEL_ROWS = 32
GROUP_ROWS = 16
FORMAT_VERSION = 2


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


@dataclass(frozen=True)
class Segment:
    """Packed rows row .. row + count - 1 are rows source .. source + count - 1 of part number `part`."""

    row: int
    part: int
    source: int
    count: int


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


def segments(parts: tuple[int, ...], *, interleave: bool) -> list[Segment]:
    """Which rows of which part stand where, in increasing order of packed rows."""
    if not interleave:
        starts = np.cumsum([0, *parts])
        return [
            Segment(int(row), part, 0, count)
            for part, (row, count) in enumerate(zip(starts, parts, strict=False))
        ]
    width = parts[0]
    assert parts == (width, width), f"interleaved parts differ: {parts}"
    return [
        Segment(2 * start + GROUP_ROWS * part, part, start, min(GROUP_ROWS, width - start))
        for start in range(0, width, GROUP_ROWS)
        for part in (0, 1)
    ]


def pack_panel(out: NDArray[Any], row: int, source: NDArray[Any]) -> None:
    """Copy `source` (rows x k: uint16 bits of bf16, or float32) into columns row .. of one panel `out` of the
    same dtype.

    out: [k/2, 32, 2] uint16 or [k, 32] float32; padding is left as it is.
    """
    count, k = source.shape
    if out.dtype == np.float32:
        out[:k, row : row + count] = source.T
    elif k % 2 == 0:
        out.view(np.uint32)[:, row : row + count, 0] = source.view(np.uint32).T
    else:
        out[: k // 2 + 1, row : row + count, 0] = source[:, 0::2].T
        out[: k // 2, row : row + count, 1] = source[:, 1::2].T


def pack(parts: list[NDArray[Any]], format_: Format, *, interleave: bool = False) -> NDArray[Any]:
    """The whole packed array of a weight given as its stacked parts, each [rows, k] or [rows]; the plain way,
    for tests and small weights. Of a window format the array that window.encode() takes.
    """
    format_ = format_.plain
    counts = tuple(len(part) for part in parts)
    k = parts[0].shape[1] if parts[0].ndim == 2 else 1
    packed = np.zeros(packed_shape(format_, packed_rows(counts, interleave=interleave), k), format_.dtype)
    for s in segments(counts, interleave=interleave):
        rows = parts[s.part][s.source : s.source + s.count]
        if format_ is Format.VECTOR_F32:
            packed[s.row : s.row + s.count] = rows
            continue
        for at in range(0, s.count, PANEL_ROWS):
            _pack_rows(packed, s.row + at, rows[at : at + PANEL_ROWS])
    return packed


def _pack_rows(packed: NDArray[Any], row: int, rows: NDArray[Any]) -> None:
    panel, first = divmod(row, PANEL_ROWS)
    here = min(len(rows), PANEL_ROWS - first)
    pack_panel(packed[panel], first, rows[:here])
    if here < len(rows):
        pack_panel(packed[panel + 1], 0, rows[here:])


def unpack(
    packed: NDArray[Any], format_: Format, parts: tuple[int, ...], k: int, *, interleave: bool = False
) -> list[NDArray[Any]]:
    """The parts again, bit for bit; the inverse of pack()."""
    format_ = format_.plain
    if format_ is Format.VECTOR_F32:
        rows = packed
    elif format_ is Format.PANEL_F32:
        rows = packed.transpose(0, 2, 1).reshape(packed.shape[0] * PANEL_ROWS, -1)[:, :k]
    else:
        rows = packed.transpose(0, 2, 1, 3).reshape(packed.shape[0] * PANEL_ROWS, -1)[:, :k]
    out = [np.empty((n, *rows.shape[1:]), format_.dtype) for n in parts]
    for s in segments(parts, interleave=interleave):
        out[s.part][s.source : s.source + s.count] = rows[s.row : s.row + s.count]
    return out
