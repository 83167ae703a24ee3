"""Coded matrices: what is stored of each, and the numbers that it stands for.

A number is (code - zero point) * scale in float32; the matrix is these, rounded once to bf16. Layouts: fp8 of
Hugging Face (DeepSeek-V3, 2024), compressed-tensors (github.com/vllm-project/compressed-tensors), AutoAWQ,
GPTQ (AutoGPTQ, versions 1 and 2), MXFP4 (OCP Microscaling Formats 1.0, 2023) as gpt-oss stores it, NVFP4.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from firelane.errors import CheckpointError
from firelane.program.recipes import widened
from firelane.weights.quantized.numbers import E2M1, E4M3, e8m0, nibbles, unpacked
from firelane.weights.quantized.stored import Stored

F32 = NDArray[np.float32]
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble of a word each of eight neighbours lies (AutoAWQ's gemm kernels)."""


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

    @abstractmethod
    def rows(self, matrix: int, first: int, last: int) -> F32:
        """Rows first .. last - 1 of one matrix. Raises CheckpointError."""


@dataclass(frozen=True)
class Scaled(Coded):
    """codes [.., n, k] of bytes (fp8 or int8), and a scale for each block of them: one for all, one a row,
    one for some neighbours of a row, or one for some rows and columns, the last of which may be cut off."""

    codes: Stored
    scales: Stored
    zeros: Stored | None
    block: tuple[int, int]

    @classmethod
    def find(
        cls, codes: Stored, scales: Stored, zeros: Stored | None, block: tuple[int, int] | None
    ) -> Scaled:
        """Raises CheckpointError where scales do not fit."""
        n, k = codes.shape[-2:]
        down, across = _grid(scales, n)
        sizes = tuple(
            _block(codes, size, count, known)
            for size, count, known in zip((n, k), (down, across), block or (0, 0), strict=True)
        )
        return cls(codes, scales, zeros, (sizes[0], sizes[1]))

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self.codes.shape

    def rows(self, matrix: int, first: int, last: int) -> F32:
        n, k = self.shape[-2:]
        values = self.codes.rows(matrix * n + first, matrix * n + last, k)
        if self.codes.dtype == "F8_E4M3":
            values = E4M3[values]
        numbers = values.astype(np.float32, copy=False)
        if self.zeros is not None:
            numbers = numbers - self._spread(self.zeros, matrix, first, last)
        return numbers * self._spread(self.scales, matrix, first, last)

    def _spread(self, stored: Stored, matrix: int, first: int, last: int) -> F32:
        """Of each number, the scale (or zero point) of its block."""
        n, k = self.shape[-2:]
        down, across = _grid(stored, n)
        tall, wide = self.block
        each = stored.whole().reshape(-1, down, across)
        grid = widened(each[matrix if len(each) > 1 else 0])
        rows = grid[np.arange(first, last) // tall]
        return np.repeat(rows, wide, axis=1)[:, :k]


def _grid(scales: Stored, n: int) -> tuple[int, int]:
    """Rows and columns of blocks."""
    if len(scales.shape) >= 2:
        return scales.shape[-2], scales.shape[-1]
    count = scales.shape[0] if scales.shape else 1
    return (count, 1) if count == n else (1, count)


def _block(codes: Stored, size: int, count: int, known: int) -> int:
    """How many of `size` neighbours share one of `count` scales."""
    if known and -(-size // known) == count:
        return known
    if not count or size % count:
        raise CheckpointError(f"tensor {codes.name}: {count} scales do not fit {size} numbers")
    return size // count


@dataclass(frozen=True)
class Packed(Coded):
    """codes [n, k * bits / 32] of words with neighbours of a row, the lowest bits first, as code + half of
    their range; scales [n, groups]; zero points [n * bits / 32, groups] packed along the rows."""

    codes: Stored
    scales: Stored
    zeros: Stored | None
    bits: int
    shape: tuple[int, ...]

    def rows(self, matrix: int, first: int, last: int) -> F32:
        del matrix
        k, half = self.shape[1], 1 << (self.bits - 1)
        words = self.codes.rows(first, last, self.codes.shape[1])
        codes = unpacked(words, self.bits)[:, :k].astype(np.int32) - half
        groups = self.scales.shape[1]
        wide = -(-k // groups)
        numbers = codes.astype(np.float32)
        if self.zeros is not None:
            zeros = unpacked(self.zeros.whole().T, self.bits).T[first:last].astype(np.int32) - half
            numbers = numbers - np.repeat(zeros.astype(np.float32), wide, axis=1)[:, :k]
        scales = widened(self.scales.rows(first, last, groups))
        return numbers * np.repeat(scales, wide, axis=1)[:, :k]


@dataclass(frozen=True)
class Transposed(Coded):
    """AWQ and GPTQ: matrices whose inputs are the rows of what is stored. whole: the numbers [k, n]."""

    shape: tuple[int, ...]
    whole: Callable[[int], F32]

    @property
    def by_rows(self) -> bool:
        return False

    def rows(self, matrix: int, first: int, last: int) -> F32:
        return np.ascontiguousarray(self.whole(matrix)[:, first:last].T)


def awq(codes: Stored, scales: Stored, zeros: Stored) -> Coded:
    """codes [k, n / 8], zero points [groups, n / 8], scales [groups, n]."""
    k, n = codes.shape[0], codes.shape[1] * 8
    _check_groups(codes, k, n, scales, zeros, n // 8)

    def ordered(words: NDArray[np.int32]) -> NDArray[np.int32]:
        found = unpacked(words, 4).reshape(len(words), -1, 8)[:, :, AWQ_ORDER]
        return found.reshape(len(words), -1).astype(np.int32)

    def whole(_: int) -> F32:
        group = k // scales.shape[0]
        points = np.repeat(ordered(zeros.whole()), group, axis=0)
        return (ordered(codes.whole()) - points).astype(np.float32) * np.repeat(
            widened(scales.whole()), group, axis=0
        )

    return Transposed((n, k), whole)


def gptq(
    codes: Stored, scales: Stored, zeros: Stored, order: Stored | None, bits: int, zero_offset: int
) -> Coded:
    """codes [k * bits / 32, n], packed along the inputs; zero points [groups, n * bits / 32]."""
    k, n = codes.shape[0] * 32 // bits, codes.shape[1]
    _check_groups(codes, k, n, scales, zeros, n * bits // 32)
    group = k // scales.shape[0]
    if order is not None and not np.array_equal(order.whole(), np.arange(k) // group):
        raise CheckpointError(f"tensor {order.name}: groups of inputs in another order are not supported")

    def whole(_: int) -> F32:
        values = unpacked(np.ascontiguousarray(codes.whole().T), bits).T.astype(np.int32)
        points = unpacked(zeros.whole(), bits).astype(np.int32) + zero_offset
        return (values - np.repeat(points, group, axis=0)).astype(np.float32) * np.repeat(
            widened(scales.whole()), group, axis=0
        )

    return Transposed((n, k), whole)


def _check_groups(codes: Stored, k: int, n: int, scales: Stored, zeros: Stored, packed: int) -> None:
    groups = scales.shape[0]
    if scales.shape != (groups, n) or zeros.shape != (groups, packed) or not groups or k % groups:
        raise CheckpointError(
            f"tensor {codes.name}: scales {list(scales.shape)} and zero points {list(zeros.shape)} do not "
            f"fit {k} inputs and {n} outputs"
        )


@dataclass(frozen=True)
class Float4(Coded):
    """Four-bit floats, two a byte, the lower bits first; a scale for each group of neighbours. Scales are
    powers of two (MXFP4, `power`), or fp8 times (or divided by) one number for the matrix (NVFP4).
    """

    codes: Stored
    scales: Stored
    shape: tuple[int, ...]
    power: bool
    factor: Stored | None = None
    divides: bool = False

    def rows(self, matrix: int, first: int, last: int) -> F32:
        n, k = self.shape[-2:]
        low, high = matrix * n + first, matrix * n + last
        values = E2M1[nibbles(self.codes.rows(low, high, k // 2))]
        groups = self.scales.shape[-1]
        raw = self.scales.rows(low, high, groups)
        scales = e8m0(raw) if self.power else E4M3[raw]
        if self.factor is not None:
            factor = widened(self.factor.whole()).reshape(-1)[0]
            scales = scales / factor if self.divides else scales * factor
        return values * np.repeat(scales.astype(np.float32), k // groups, axis=1)


@dataclass(frozen=True)
class Blocks(Coded):
    """gpt-oss: four-bit floats [experts, n, groups, 16], scales [experts, n, groups]; they stand for the
    tensor [experts, k, n] of the bf16 checkpoint, whose rows are inputs."""

    codes: Stored
    scales: Stored

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        experts, n, groups, _ = self.codes.shape
        return experts, groups * 32, n

    @property
    def by_rows(self) -> bool:
        return False

    def rows(self, matrix: int, first: int, last: int) -> F32:
        _, n, groups, _ = self.codes.shape
        rows = matrix * n, matrix * n + n
        values = E2M1[nibbles(self.codes.rows(*rows, groups * 16))]
        scales = np.repeat(e8m0(self.scales.rows(*rows, groups)), 32, axis=1)
        return np.ascontiguousarray((values * scales).T[first:last])
