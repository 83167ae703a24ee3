"""Coded matrices: what is stored of each, and the numbers that it stands for.

A number is (code - zero point) * scale in float32; the matrix is these, rounded once to bf16. Layouts: fp8 of
Hugging Face (DeepSeek-V3, 2024), compressed-tensors (github.com/vllm-project/compressed-tensors), AutoAWQ,
GPTQ (AutoGPTQ, versions 1 and 2). Four-bit floats are in float4.py.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.program.recipes import widened
from firelane.weights.formats.codebooks import Codebook, e4m3
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format
from firelane.weights.quantized.numbers import unpacked
from firelane.weights.quantized.stored import CodedPart

F32 = NDArray[np.float32]
Order = NDArray[np.int64]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble of a word each of eight neighbours lies (AutoAWQ's gemm kernels)."""
INT4_OF = {"F16": Format.PANEL_INT4_F16, "BF16": Format.PANEL_INT4_BF16}
INT8_OF = {"F16": Format.PANEL_INT8_F16, "BF16": Format.PANEL_INT8_BF16}
"""By the dtype of scales; PANEL_INT4 and PANEL_INT8 for others."""


class Coded(ABC):
    """A matrix [rows, columns], or several of one shape; `shape`: of the tensor that it stands for."""

    shape: tuple[int, ...]

    @property
    def matrices(self) -> int:
        return self.shape[0] if len(self.shape) == 3 else 1

    @property
    def by_rows(self) -> bool:
        """Whether a few rows cost no more than they are."""
        return True

    @property
    def by_columns(self) -> bool:
        """Whether codes() gives columns of the matrices, not rows."""
        return False

    @property
    def format(self) -> Format | None:
        """The packed format that keeps the codes; None where there is none."""
        return None

    @abstractmethod
    def rows(self, matrix: int, first: int, last: int) -> F32:
        """Rows first .. last - 1 of one matrix. Raises CheckpointError."""

    def codes(self, first: int, last: int) -> Codes:
        """Rows first .. last - 1 of all matrices, of what has a format."""
        raise NotImplementedError


@dataclass(frozen=True)
class Scaled(Coded):
    """codes [.., n, k] of bytes (fp8 or int8), and a scale for each block of them: one for all, one a row,
    one for some neighbours of a row, or one for some rows and columns, the last of which may be cut off."""

    stored: CodedPart
    scales: CodedPart
    zeros: CodedPart | None
    block: tuple[int, int]

    @classmethod
    def find(
        cls, codes: CodedPart, scales: CodedPart, zeros: CodedPart | None, block: tuple[int, int] | None
    ) -> Scaled:
        """Raises CheckpointError where scales do not fit."""
        n, k = codes.shape[-2:]
        down, across = _grid(scales, n)
        sizes = tuple(
            _block(codes, size, count, known)
            for size, count, known in zip((n, k), (down, across), block or (0, 0), strict=True)
        )
        is_rows = codes.dtype == "I8" and zeros is None and sizes == (1, k) and len(codes.shape) == 2
        return (Int8Rows if is_rows else cls)(codes, scales, zeros, (sizes[0], sizes[1]))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.stored.shape

    @property
    def format(self) -> Format | None:
        """fp8 without zero points, of blocks as wide as groups."""
        k, wide = self.shape[-1], self.block[1]
        if self.stored.dtype != "F8_E4M3" or self.zeros is not None:
            return None
        if k % 128 == 0 and (wide % 128 == 0 or wide >= k):
            return Format.PANEL_E4M3_128
        return Format.PANEL_E4M3 if k % 32 == 0 and (wide % 32 == 0 or wide >= k) else None

    def codes(self, first: int, last: int) -> Codes:
        n, k = self.shape[-2:]
        group = 128 if self.format is Format.PANEL_E4M3_128 else 32
        codes = self.stored.rows(first, last, k).view(np.int8)
        scales = [
            self._spread(self.scales, matrix, max(first - matrix * n, 0), min(last - matrix * n, n), group)
            for matrix in range(first // n, -(-last // n))
        ]
        return Codes(codes, np.concatenate(scales), book=Codebook.E4M3)

    def rows(self, matrix: int, first: int, last: int) -> F32:
        n, k = self.shape[-2:]
        values = self.stored.rows(matrix * n + first, matrix * n + last, k)
        if self.stored.dtype == "F8_E4M3":
            values = e4m3()[values]
        numbers = values.astype(np.float32, copy=False)
        if self.zeros is not None:
            numbers = numbers - self._spread(self.zeros, matrix, first, last)
        return numbers * self._spread(self.scales, matrix, first, last)

    def _spread(self, stored: CodedPart, matrix: int, first: int, last: int, group: int = 1) -> F32:
        """The scale (or zero point) of each number's block, or of each `group` of neighbours."""
        n, k = self.shape[-2:]
        down, across = _grid(stored, n)
        tall, wide = self.block
        each = stored.whole().reshape(-1, down, across)
        grid = widened(each[matrix if len(each) > 1 else 0])
        rows = grid[np.arange(first, last) // tall]
        return np.ascontiguousarray(rows[:, np.arange(0, k, group) // wide])


def _grid(scales: CodedPart, n: int) -> tuple[int, int]:
    """Rows and columns of blocks."""
    if len(scales.shape) >= 2:
        return scales.shape[-2], scales.shape[-1]
    count = scales.shape[0] if scales.shape else 1
    return (count, 1) if count == n else (1, count)


def _block(codes: CodedPart, size: int, count: int, known: int) -> int:
    """The number of neighbours, of `size`, that share one of `count` scales."""
    if known and -(-size // known) == count:
        return known
    if not count or size % count:
        raise CheckpointError(f"tensor {codes.name}: {count} scales do not fit {size} numbers")
    return size // count


@dataclass(frozen=True)
class Int8Rows(Scaled):
    """Scaled() integers with one scale a row, and no zero points."""

    @property
    def format(self) -> Format | None:
        return INT8_OF.get(self.scales.dtype, Format.PANEL_INT8)

    def codes(self, first: int, last: int) -> Codes:
        k = self.shape[-1]
        scales = widened(self.scales.whole()).reshape(-1, 1)[first:last]
        return Codes(self.stored.rows(first, last, k), scales)


@dataclass(frozen=True)
class Packed(Coded):
    """Codes [n, k * bits / 32] of words with neighbours of a row, the lowest bits first, as code + half of
    their range; scales [n, groups]; zero points [n * bits / 32, groups] packed along the rows. order: the
    group of each input, None: neighbours."""

    stored: CodedPart
    scales: CodedPart
    zeros: CodedPart | None
    bits: int
    shape: tuple[int, ...]
    order: Order | None = None

    @property
    def format(self) -> Format | None:
        if self.order is not None or self.shape[1] % (32 * self.scales.shape[1]):
            return None
        if self.zeros is not None:
            return _with_minima(self.bits, self.scales.dtype)
        if self.bits == 4:
            return INT4_OF.get(self.scales.dtype, Format.PANEL_INT4)
        return INT8_OF.get(self.scales.dtype, Format.PANEL_INT8)

    def rows(self, matrix: int, first: int, last: int) -> F32:
        del matrix
        codes, points, scales = self._parts(first, last)
        if self.order is not None:
            return (codes.astype(np.float32) - points[:, self.order]) * scales[:, self.order]
        groups = scales.shape[1]
        numbers = codes.reshape(len(codes), groups, -1).astype(np.float32)
        return ((numbers - points[:, :, None]) * scales[:, :, None]).reshape(len(codes), -1)

    def codes(self, first: int, last: int) -> Codes:
        """Codes of rows first .. last - 1; those of four bits with zero points count from 0 on."""
        codes, points, scales = self._parts(first, last)
        if self.zeros is None:
            return Codes(codes, scales)
        offset = 8 if self.bits == 4 else 0
        minima = (scales * (points + np.float32(offset))).astype(np.float32)
        return Codes(codes + np.int8(offset), scales, minima)

    def _parts(self, first: int, last: int) -> tuple[NDArray[np.int8], F32, F32]:
        """Codes, and zero points and scales by group."""
        k, half, groups = self.shape[1], 1 << (self.bits - 1), self.scales.shape[1]
        words = self.stored.rows(first, last, self.stored.shape[1])
        codes = (unpacked(words, self.bits)[:, :k].astype(np.int32) - half).astype(np.int8)
        scales = widened(self.scales.rows(first, last, groups))
        if self.zeros is None:
            return codes, np.zeros_like(scales), scales
        zeros = unpacked(self.zeros.whole().T, self.bits).T[first:last].astype(np.int32) - half
        return codes, zeros.astype(np.float32), scales


@dataclass(frozen=True)
class ByInputs:
    """A matrix as AWQ and GPTQ store it: codes [k, n], zero points and scales [groups, n]."""

    codes: NDArray[np.int32]
    points: NDArray[np.int32]
    scales: F32


@dataclass(frozen=True)
class Transposed(Coded):
    """AWQ and GPTQ: matrices whose inputs are the rows of what is stored, without a sign. order: the group of
    each input, None: neighbours."""

    shape: tuple[int, ...]
    bits: int
    groups: int
    scale_dtype: str
    whole: Callable[[], ByInputs]
    order: Order | None = None

    @property
    def by_rows(self) -> bool:
        return False

    @property
    def format(self) -> Format | None:
        """None where groups are no neighbours: packed formats have one scale for such."""
        if self.order is not None or self.shape[1] % (32 * self.groups):
            return None
        return _with_minima(self.bits, self.scale_dtype)

    def rows(self, matrix: int, first: int, last: int) -> F32:
        del matrix
        found = self.whole()
        neighbours = np.arange(len(found.codes)) // (len(found.codes) // self.groups)
        order = neighbours if self.order is None else self.order
        points, scales = found.points[order], found.scales[order]
        numbers = (found.codes - points).astype(np.float32) * scales
        return np.ascontiguousarray(numbers[:, first:last].T)

    def codes(self, first: int, last: int) -> Codes:
        found, offset = self.whole(), 128 if self.bits == 8 else 0
        taken = np.ascontiguousarray((found.codes[:, first:last] - offset).T).astype(np.int8)
        scales = np.ascontiguousarray(found.scales[:, first:last].T)
        points = np.ascontiguousarray((found.points[:, first:last] - offset).T).astype(np.float32)
        return Codes(taken, scales, scales * points)


def _with_minima(bits: int, scale_dtype: str) -> Format | None:
    """None for scales whose products with codes are rounded."""
    if scale_dtype not in ("F16", "BF16"):
        return None
    return Format.PANEL_INT4_MIN if bits == 4 else Format.PANEL_INT8_MIN


def awq(codes: CodedPart, scales: CodedPart, zeros: CodedPart) -> Coded:
    """codes [k, n / 8], zero points [groups, n / 8], scales [groups, n]."""
    k, n = codes.shape[0], codes.shape[1] * 8
    _check_groups(codes, k, n, scales, zeros, n // 8)

    def ordered(words: NDArray[np.int32]) -> NDArray[np.int32]:
        found = unpacked(words, 4).reshape(len(words), -1, 8)[:, :, AWQ_ORDER]
        return found.reshape(len(words), -1).astype(np.int32)

    def whole() -> ByInputs:
        return ByInputs(ordered(codes.whole()), ordered(zeros.whole()), widened(scales.whole()))

    return Transposed((n, k), 4, scales.shape[0], scales.dtype, whole)


def gptq(
    codes: CodedPart,
    scales: CodedPart,
    zeros: CodedPart,
    order: CodedPart | None,
    bits: int,
    zero_offset: int,
) -> Coded:
    """codes [k * bits / 32, n], packed along the inputs; zero points [groups, n * bits / 32]."""
    k, n = codes.shape[0] * 32 // bits, codes.shape[1]
    _check_groups(codes, k, n, scales, zeros, n * bits // 32)
    groups = read_order(order, k, scales.shape[0])

    def whole() -> ByInputs:
        values = unpacked(np.ascontiguousarray(codes.whole().T), bits).T.astype(np.int32)
        points = unpacked(zeros.whole(), bits).astype(np.int32) + zero_offset
        return ByInputs(values, points, widened(scales.whole()))

    return Transposed((n, k), bits, scales.shape[0], scales.dtype, whole, groups)


def read_order(stored: CodedPart | None, k: int, groups: int) -> Order | None:
    """The group of each of k inputs; None where all groups are neighbours. Raises CheckpointError."""
    if stored is None:
        return None
    order = stored.whole().reshape(-1).astype(np.int64)
    if (order == -1).all():  # never filled in
        return None
    if len(order) != k or not ((order >= 0) & (order < groups)).all():
        raise CheckpointError(f"tensor {stored.name}: it does not name one of {groups} groups for {k} inputs")
    return None if np.array_equal(order, np.arange(k) // (k // groups)) else order


def _check_groups(codes: CodedPart, k: int, n: int, scales: CodedPart, zeros: CodedPart, packed: int) -> None:
    groups = scales.shape[0]
    if scales.shape != (groups, n) or zeros.shape != (groups, packed) or not groups or k % groups:
        raise CheckpointError(
            f"tensor {codes.name}: scales {list(scales.shape)} and zero points {list(zeros.shape)} do not "
            f"fit {k} inputs and {n} outputs"
        )
