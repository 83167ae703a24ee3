"""Coded matrices of four-bit floats: MXFP4 (OCP Microscaling Formats 1.0, 2023), also as gpt-oss stores it,
and NVFP4."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from firelane.program.recipes import widened
from firelane.weights.formats.codebooks import E2M1_VALUES, Codebook, e4m3
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import Format
from firelane.weights.quantized.coded import F32, Coded
from firelane.weights.quantized.numbers import E2M1, e8m0, nibbles
from firelane.weights.quantized.stored import CodedPart


@dataclass(frozen=True)
class Float4(Coded):
    """Four-bit floats, two a byte, the lower bits first; a scale for each group of neighbours. Scales are
    powers of two (MXFP4, `power`), or fp8 times (or divided by) one number for the matrix (NVFP4).
    """

    stored: CodedPart
    scales: CodedPart
    shape: tuple[int, ...]
    power: bool
    factor: CodedPart | None = None
    divides: bool = False

    @property
    def format(self) -> Format | None:
        group = self.shape[-1] // self.scales.shape[-1]
        if self.power and self.factor is None:
            return Format.PANEL_MXFP4 if group % 32 == 0 else None
        return Format.PANEL_E2M1_16 if group % 16 == 0 else None

    def codes(self, first: int, last: int) -> Codes:
        codes = E2M1_VALUES[nibbles(self.stored.rows(first, last, self.shape[-1] // 2))]
        return Codes(codes, self._scales(first, last) * np.float32(0.5), book=Codebook.E2M1)

    def rows(self, matrix: int, first: int, last: int) -> F32:
        n, k = self.shape[-2:]
        low, high = matrix * n + first, matrix * n + last
        values = E2M1[nibbles(self.stored.rows(low, high, k // 2))]
        return values * np.repeat(self._scales(low, high), k // self.scales.shape[-1], axis=1)

    def _scales(self, low: int, high: int) -> F32:
        raw = self.scales.rows(low, high, self.scales.shape[-1])
        scales = e8m0(raw) if self.power else e4m3()[raw]
        if self.factor is not None:
            factor = widened(self.factor.whole()).reshape(-1)[0]
            scales = scales / factor if self.divides else scales * factor
        return scales.astype(np.float32)


@dataclass(frozen=True)
class Blocks(Coded):
    """gpt-oss: four-bit floats [experts, n, groups, 16], scales [experts, n, groups]; they stand for the
    tensor [experts, k, n] of the bf16 checkpoint, whose rows are inputs."""

    stored: CodedPart
    scales: CodedPart

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        experts, n, groups, _ = self.stored.shape
        return experts, groups * 32, n

    @property
    def by_rows(self) -> bool:
        return False

    @property
    def by_columns(self) -> bool:
        return True

    @property
    def format(self) -> Format | None:
        return Format.PANEL_MXFP4

    def codes(self, first: int, last: int) -> Codes:
        groups = self.stored.shape[2]
        codes = E2M1_VALUES[nibbles(self.stored.rows(first, last, groups * 16))]
        scales = e8m0(self.scales.rows(first, last, groups)) * np.float32(0.5)
        return Codes(codes, scales.astype(np.float32), book=Codebook.E2M1)

    def rows(self, matrix: int, first: int, last: int) -> F32:
        _, n, groups, _ = self.stored.shape
        rows = matrix * n, matrix * n + n
        values = E2M1[nibbles(self.stored.rows(*rows, groups * 16))]
        scales = np.repeat(e8m0(self.scales.rows(*rows, groups)), 32, axis=1)
        return np.ascontiguousarray((values * scales).T[first:last])
