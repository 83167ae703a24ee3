"""Losses of quantising, matrix by matrix."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import msgspec
import numpy as np
from numpy.typing import NDArray

from firelane.program.recipes import widened
from firelane.weights.formats.bf16 import bf16_bits

F32 = NDArray[np.float32]
NAME = "quantization_report.json"


class MatrixReport(msgspec.Struct, frozen=True, kw_only=True):
    """relative_error: the root of the sum of squared errors over that of squared numbers. largest_error: of a
    number, over the largest number of the matrix. bits: of a number on disk, scales among them. Errors are
    those of the bf16 numbers that the codes stand for."""

    name: str
    shape: tuple[int, int]
    bits: float
    relative_error: float
    largest_error: float


class KeptReport(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor that stays as it is. why: "" of what is never quantised."""

    name: str
    dtype: str
    why: str


class FileReport(msgspec.Struct, frozen=True, kw_only=True):
    matrices: list[MatrixReport]
    kept: list[KeptReport]
    nbytes: int


class QuantizeReport(msgspec.Struct, frozen=True, kw_only=True):
    """files: by name those that are finished. relative_error: of all matrices together."""

    format: str
    files: dict[str, FileReport]
    original_bytes: int = 0
    relative_error: float = 0.0

    @property
    def matrices(self) -> list[MatrixReport]:
        return [matrix for file in self.files.values() for matrix in file.matrices]

    @property
    def kept(self) -> list[KeptReport]:
        return [kept for file in self.files.values() for kept in file.kept]

    @property
    def nbytes(self) -> int:
        return sum(file.nbytes for file in self.files.values())

    def encode(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n"


class Errors:
    """Sums over the rows of a matrix, which come one after the other."""

    def __init__(self) -> None:
        self._apart = self._numbers = 0.0
        self._most_apart = self._most = 0.0

    def add(self, sums: tuple[float, float, float, float]) -> None:
        """Sums, as sums_of() gives them."""
        self._apart += sums[0]
        self._numbers += sums[1]
        self._most_apart = max(self._most_apart, sums[2])
        self._most = max(self._most, sums[3])

    @property
    def relative(self) -> float:
        return sqrt(self._apart / self._numbers) if self._numbers else 0.0

    @property
    def largest(self) -> float:
        return self._most_apart / self._most if self._most else 0.0


def sums_of(values: F32, quantised: F32) -> tuple[float, float, float, float]:
    """Sums of squared errors and of squared numbers; the largest error and the largest number."""
    apart = (widened(bf16_bits(quantised)) - values).reshape(-1)
    flat = values.reshape(-1)
    largest = float(np.abs(apart).max(initial=0)), float(np.abs(flat).max(initial=0))
    return float(np.dot(apart, apart)), float(np.dot(flat, flat)), *largest


def overall_error(matrices: Sequence[MatrixReport]) -> float:
    """The root of the mean square of the relative errors, each matrix by its numbers."""
    weights = [m.shape[0] * m.shape[1] for m in matrices]
    total = sum(w * m.relative_error**2 for w, m in zip(weights, matrices, strict=True))
    return sqrt(total / max(sum(weights), 1))
