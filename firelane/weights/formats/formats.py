"""Packed formats: how weights lie in memory for the kernels. N is padded with zero rows, K with zero columns.

    PANEL_BF16     uint16  [N/32][K/2][32][2]   pairs of k beside each other, for the bf16 dot-product
                                                instruction
    PANEL_F32      float32 [N/32][K][32]        K even
    VECTOR_F32     float32 [N]                  N a multiple of 32, so that a kernel may read a panel's whole
                                                width
    PANEL_CODED4  uint8, PANEL_BF16's panels one by one without loss in 12 bits a weight and more where
                   weights are unlike the others; K a multiple of 4. See coded.py
    PANEL_CODED3  the same in 11 bits and more, K a multiple of 16
    PANEL_INT…     uint8, quantised weights as codes and scales; see grouped.py

Of a gated weight ([gate; up]) gate and up are padded to a multiple of 16 rows each and alternate in groups of
16 (16 gate rows, the 16 up rows of the same outputs, the next 16 gate rows …), so that one panel of 32 rows
makes 16 outputs. The matrices of a weight by expert are padded each, and follow on each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from firelane.weights.formats.codebooks import Codebook

PANEL_ROWS = 32
GROUP_ROWS = 16
FORMAT_VERSION = 5
LEVELS_BLOCK = 256
"""Inputs that share the units of scales of two levels."""


class Heads(Enum):
    """Numbers that scales and minima are stored as. LEVELS: a float16 unit for each LEVELS_BLOCK inputs of an
    output, and for each group of them an int8 that it is multiplied by. POWER: powers of two, as a byte."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    LEVELS = "levels"
    POWER = "power"


@dataclass(frozen=True)
class Grouping:
    """Codes of `bits` with a scale for each `group` inputs, and minima or not; those of a book of four bits
    are places in its table."""

    bits: Literal[4, 6, 8]
    group: Literal[16, 32, 128]
    minima: bool
    heads: Heads = Heads.F32
    book: Codebook = Codebook.INT

    @property
    def span(self) -> int:
        """Inputs that are packed together."""
        if self.heads is Heads.LEVELS:
            return LEVELS_BLOCK
        return max(self.group, 32) if self.bits == 6 else self.group

    def holds(self, other: Grouping) -> bool:
        """Whether codes of the other can have this one, to the last bit."""
        heads = self.heads in (other.heads, Heads.F32)
        integers = self.book is Codebook.INT and self.bits == 8 and other.book is not Codebook.E4M3
        book = self.book is other.book or integers
        finer = self.bits >= other.bits and self.group <= other.group
        offset = self.bits == 4 and self.minima and not other.minima  # added to codes: products round
        minima = self.minima >= other.minima and not (offset and other.heads is Heads.F32)
        return heads and book and finer and minima

    @property
    def weight_bits(self) -> float:
        """Bits that a weight takes."""
        size = {Heads.F32: 32, Heads.F16: 16, Heads.BF16: 16}.get(self.heads, 8)
        units = 16 / LEVELS_BLOCK if self.heads is Heads.LEVELS else 0
        return self.bits + (size / self.group + units) * (1 + self.minima)


class Format(Enum):
    PANEL_BF16 = "panel_bf16"
    PANEL_F32 = "panel_f32"
    VECTOR_F32 = "vector_f32"
    PANEL_CODED4 = "panel_coded4"
    PANEL_CODED3 = "panel_coded3"
    PANEL_INT4 = "panel_int4"
    PANEL_INT4_MIN = "panel_int4_min"
    PANEL_INT4_16 = "panel_int4_16"
    PANEL_INT4_16_MIN = "panel_int4_16_min"
    PANEL_INT8 = "panel_int8"
    PANEL_INT8_MIN = "panel_int8_min"
    PANEL_INT8_16 = "panel_int8_16"
    PANEL_INT8_16_MIN = "panel_int8_16_min"
    PANEL_INT4_F16 = "panel_int4_f16"
    PANEL_INT4_BF16 = "panel_int4_bf16"
    PANEL_INT4_F16_MIN = "panel_int4_f16_min"
    PANEL_INT4_LEVELS_MIN = "panel_int4_levels_min"
    PANEL_INT4_16_LEVELS = "panel_int4_16_levels"
    PANEL_INT4_16_LEVELS_MIN = "panel_int4_16_levels_min"
    PANEL_INT6_F16 = "panel_int6_f16"
    PANEL_INT6_F16_MIN = "panel_int6_f16_min"
    PANEL_INT6_LEVELS_MIN = "panel_int6_levels_min"
    PANEL_INT6_16_LEVELS = "panel_int6_16_levels"
    PANEL_INT6_16_LEVELS_MIN = "panel_int6_16_levels_min"
    PANEL_INT8_F16 = "panel_int8_f16"
    PANEL_INT8_BF16 = "panel_int8_bf16"
    PANEL_INT8_LEVELS = "panel_int8_levels"
    PANEL_MXFP4 = "panel_mxfp4"
    PANEL_E2M1_16 = "panel_e2m1_16"
    PANEL_IQ4_F16 = "panel_iq4_f16"
    PANEL_IQ4_LEVELS = "panel_iq4_levels"
    PANEL_E4M3 = "panel_e4m3"
    PANEL_E4M3_128 = "panel_e4m3_128"

    @property
    def is_lossless(self) -> bool:
        """Whether panels of any bf16 matrix can be coded so; they differ in size."""
        return self in (Format.PANEL_CODED4, Format.PANEL_CODED3)

    @property
    def grouping(self) -> Grouping | None:
        """The grouping of a format for quantised matrices, otherwise None."""
        return GROUPINGS.get(self)

    @property
    def is_coded(self) -> bool:
        """Whether panels are bytes that kernels decode."""
        return self.is_lossless or self.grouping is not None

    @property
    def plain(self) -> Format:
        """The format of the same weights when decoded."""
        return Format.PANEL_BF16 if self.is_coded else self

    @property
    def k_multiple(self) -> int:
        """The number that divides the number of inputs."""
        return {Format.PANEL_CODED4: 4, Format.PANEL_CODED3: 16}.get(self, 1)

    @property
    def dtype(self) -> type[np.generic]:
        if self.is_coded:
            return np.uint8
        return np.uint16 if self is Format.PANEL_BF16 else np.float32


GROUPINGS = {
    Format.PANEL_INT4: Grouping(4, 32, minima=False),
    Format.PANEL_INT4_MIN: Grouping(4, 32, minima=True),
    Format.PANEL_INT4_16: Grouping(4, 16, minima=False),
    Format.PANEL_INT4_16_MIN: Grouping(4, 16, minima=True),
    Format.PANEL_INT8: Grouping(8, 32, minima=False),
    Format.PANEL_INT8_MIN: Grouping(8, 32, minima=True),
    Format.PANEL_INT8_16: Grouping(8, 16, minima=False),
    Format.PANEL_INT8_16_MIN: Grouping(8, 16, minima=True),
    Format.PANEL_INT4_F16: Grouping(4, 32, minima=False, heads=Heads.F16),
    Format.PANEL_INT4_BF16: Grouping(4, 32, minima=False, heads=Heads.BF16),
    Format.PANEL_INT4_F16_MIN: Grouping(4, 32, minima=True, heads=Heads.F16),
    Format.PANEL_INT4_LEVELS_MIN: Grouping(4, 32, minima=True, heads=Heads.LEVELS),
    Format.PANEL_INT4_16_LEVELS: Grouping(4, 16, minima=False, heads=Heads.LEVELS),
    Format.PANEL_INT4_16_LEVELS_MIN: Grouping(4, 16, minima=True, heads=Heads.LEVELS),
    Format.PANEL_INT6_F16: Grouping(6, 32, minima=False, heads=Heads.F16),
    Format.PANEL_INT6_F16_MIN: Grouping(6, 32, minima=True, heads=Heads.F16),
    Format.PANEL_INT6_LEVELS_MIN: Grouping(6, 32, minima=True, heads=Heads.LEVELS),
    Format.PANEL_INT6_16_LEVELS: Grouping(6, 16, minima=False, heads=Heads.LEVELS),
    Format.PANEL_INT6_16_LEVELS_MIN: Grouping(6, 16, minima=True, heads=Heads.LEVELS),
    Format.PANEL_INT8_F16: Grouping(8, 32, minima=False, heads=Heads.F16),
    Format.PANEL_INT8_BF16: Grouping(8, 32, minima=False, heads=Heads.BF16),
    Format.PANEL_INT8_LEVELS: Grouping(8, 32, minima=False, heads=Heads.LEVELS),
    Format.PANEL_MXFP4: Grouping(4, 32, minima=False, heads=Heads.POWER, book=Codebook.E2M1),
    Format.PANEL_E2M1_16: Grouping(4, 16, minima=False, book=Codebook.E2M1),
    Format.PANEL_IQ4_F16: Grouping(4, 32, minima=False, heads=Heads.F16, book=Codebook.IQ4),
    Format.PANEL_IQ4_LEVELS: Grouping(4, 32, minima=False, heads=Heads.LEVELS, book=Codebook.IQ4),
    Format.PANEL_E4M3: Grouping(8, 32, minima=False, book=Codebook.E4M3),
    Format.PANEL_E4M3_128: Grouping(8, 128, minima=False, book=Codebook.E4M3),
}


def smallest_holding(formats: Iterable[Format], k: int, *, plain: bool = False) -> Format | None:
    """The grouped format of the fewest bits that holds the codes of all of these for k inputs; None where
    there is none. plain: with scales that are numbers by themselves."""
    wanted = [GROUPINGS[format_] for format_ in formats]
    able = [
        format_
        for format_, grouping in GROUPINGS.items()
        if k
        and k % grouping.span == 0
        and not (plain and grouping.heads is Heads.LEVELS)
        and all(grouping.holds(other) for other in wanted)
    ]
    return min(able, key=lambda format_: GROUPINGS[format_].weight_bits, default=None)


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def packed_rows(rows: int, *, gated: bool) -> int:
    """Rows of one matrix after padding."""
    return 2 * round_up(rows // 2, GROUP_ROWS) if gated else round_up(rows, PANEL_ROWS)


def packed_shape(format_: Format, rows: int, k: int) -> tuple[int, ...]:
    """The array's shape, of a coded format that of the decoded one; `rows` are padded already, k
    (in_features) is not.
    """
    if format_ is Format.VECTOR_F32:
        return (rows,)
    k = round_up(k, 2)
    if format_ is Format.PANEL_F32:
        return (rows // PANEL_ROWS, k, PANEL_ROWS)
    return (rows // PANEL_ROWS, k // 2, PANEL_ROWS, 2)


def source_rows(rows: int, first: int, last: int, *, gated: bool) -> NDArray[np.int64]:
    """Rows of the weight that the packed rows first .. last - 1 hold, -1 for padding. `rows`: of one matrix;
    the packed rows of several follow on each other."""
    matrix, row = np.divmod(np.arange(first, last), packed_rows(rows, gated=gated))
    if not gated:
        return np.where(row < rows, matrix * rows + row, -1)
    group, within = np.divmod(row, 2 * GROUP_ROWS)
    half, source = np.divmod(within, GROUP_ROWS)
    source += group * GROUP_ROWS
    return np.where(source < rows // 2, matrix * rows + half * (rows // 2) + source, -1)


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


def pack(values: NDArray[Any], format_: Format, *, gated: bool = False) -> NDArray[Any]:
    """The whole packed array of a weight [n], [n, k] or [experts, n, k]; the plain way, for tests and small
    weights. Of a coded format the array that coded.encode() takes.
    """
    rows, flat = _flat(values)
    source = source_rows(rows, 0, len(flat) // rows * packed_rows(rows, gated=gated), gated=gated)
    here = source >= 0
    if values.ndim == 1:
        packed = np.zeros(len(source), format_.plain.dtype)
        packed[here] = flat[source[here]]
        return packed
    packed = np.zeros((len(source), round_up(flat.shape[1], 2)), format_.plain.dtype)
    packed[here, : flat.shape[1]] = flat[source[here]]
    return np.ascontiguousarray(to_panels(packed))


def unpack(
    packed: NDArray[Any], format_: Format, shape: tuple[int, ...], *, gated: bool = False
) -> NDArray[Any]:
    """The weight of that shape again, bit for bit; the inverse of pack()."""
    packed = packed if format_ is Format.VECTOR_F32 else from_panels(packed)[:, : shape[-1]]
    out = np.empty(shape, packed.dtype)
    rows, flat = _flat(out)
    source = source_rows(rows, 0, len(packed), gated=gated)
    flat[source[source >= 0]] = packed[source >= 0]
    return out


def _flat(values: NDArray[Any]) -> tuple[int, NDArray[Any]]:
    """The rows of one matrix, and a view of those of all."""
    if values.ndim == 1:
        return len(values), values
    return values.shape[-2], values.reshape(-1, values.shape[-1])
