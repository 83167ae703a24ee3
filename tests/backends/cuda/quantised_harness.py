"""Quantised matrices for tests, on the CPU, and the bf16 bits that they stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matrices_harness import escapes_of, no_escapes, padded

from firelane.backends.cuda.device.shapes import K_TILE, round_up
from firelane.backends.cuda.loading.packing import by_block
from firelane.backends.cuda.weights import coded_reference as reference
from firelane.backends.cuda.weights.escape_codes import bounds_of, zero_escapes
from firelane.backends.cuda.weights.matrices import FP4, FP8, HALF_BYTES, INT4, QuantisedMatrix
from firelane.backends.cuda.weights.quantised_weights import half_bytes
from firelane.weights.formats.codebooks import e4m3
from firelane.weights.quantized.numbers import E2M1
from tests.weights.files import to_bf16


@dataclass(frozen=True, kw_only=True)
class Form:
    """numbers: INT4, INT8, FP8 or FP4; scales: their dtype, of groups of group_size inputs."""

    numbers: str
    group_size: int
    scales: torch.dtype = torch.float16
    minima: bool = False
    units: bool = False

    def __str__(self) -> str:
        return f"{self.numbers} by {self.group_size}{', minima' * self.minima}{', units' * self.units}"


@dataclass(frozen=True, kw_only=True)
class Quantised:
    """One part of a matrix. codes: uint8 [rows, k], as they are stored; scales, minima: float32, and whole
    numbers where there are units, [1 or 2, rows, k / 256]."""

    form: Form
    codes: np.ndarray
    scales: np.ndarray
    minima: np.ndarray | None
    units: np.ndarray | None = None

    @property
    def bits(self) -> np.ndarray:
        """The bits of the bf16 numbers that the codes stand for, [rows, k]."""
        numbers = numbers_of(self.codes, self.form) * self._spread(self.scales, 0)
        return to_bf16(numbers if self.minima is None else numbers - self._spread(self.minima, 1))

    def _spread(self, heads: np.ndarray, level: int) -> np.ndarray:
        """A float32 number for each input."""
        every = np.repeat(heads, self.form.group_size, axis=1)
        return every if self.units is None else every * np.repeat(self.units[level], 256, axis=1)


def numbers_of(codes: np.ndarray, form: Form) -> np.ndarray:
    """float32."""
    if form.numbers in (FP8, FP4):
        return (e4m3() if form.numbers == FP8 else E2M1)[codes]
    if form.numbers == INT4:
        return codes.astype(np.float32) - (0 if form.minima else 8)
    return codes.view(np.int8).astype(np.float32)


def random_part(form: Form, rows: int, k: int, *, seed: int = 0) -> Quantised:
    """Some scales so large or small that what they give are escapes, and some minima close to a multiple of
    their scale."""
    rng = np.random.default_rng(seed)
    if form.units:
        return _leveled_part(form, rows, k, rng)
    shape = (rows, k // form.group_size)
    codes = rng.integers(0, 16 if form.numbers in HALF_BYTES else 256, (rows, k)).astype(np.uint8)
    if form.numbers == FP8:
        codes[rng.random((rows, k)) > 0.002] |= 0x20  # else too many would be escapes
        codes[codes & 127 == 127] = 0  # no number
    scales = 0.01 * np.exp(rng.standard_normal(shape) / 4)
    scales *= np.select([rng.random(shape) < 0.002, rng.random(shape) < 0.002], [2.0**-9, 2.0**7], 1.0)
    if form.scales is torch.uint8:
        scales = 2.0 ** np.round(np.log2(scales))
    else:
        scales = torch.from_numpy(scales).to(form.scales).float().numpy()
    least = np.round(rng.random(shape) * 12) * (1 + (rng.random(shape) < 0.03) * 2.0**-13)
    minima = torch.from_numpy((scales * least).astype(np.float32)).to(torch.float32).numpy()
    return Quantised(form=form, codes=codes, scales=scales, minima=minima if form.minima else None)


def _leveled_part(form: Form, rows: int, k: int, rng: np.random.Generator) -> Quantised:
    """Draw a part with scales of two levels, as K-quants have them."""
    shape, count = (rows, k // form.group_size), 1 + form.minima
    scales, minima = (rng.integers(20, 64, shape).astype(np.float32) for _ in range(2))
    units = (0.001 + 0.001 * rng.random((count, rows, k // 256))) * [[[1]], [[4]]][:count]
    units[:, rng.random((rows, k // 256)) < 0.004] *= 2.0**-10
    return Quantised(
        form=form,
        codes=rng.integers(0, 16 if form.numbers in HALF_BYTES else 256, (rows, k)).astype(np.uint8),
        scales=scales,
        minima=minima if form.minima else None,
        units=units.astype(np.float16).astype(np.float32),
    )


def quantised_matrix(parts: Sequence[Quantised]) -> QuantisedMatrix:
    """The parts below each other, each padded; with the escapes of their bf16 bits."""
    form, k = parts[0].form, parts[0].codes.shape[1]
    codes = padded([part.codes for part in parts])
    width = round_up(k, K_TILE) // form.group_size
    scales, *minima = (
        torch.from_numpy(np.concatenate([_padded_rows(h, width) for h in heads]))
        for heads in ([p.scales for p in parts], [p.minima for p in parts])
        if heads[0] is not None
    )
    split = reference.split(padded([part.bits for part in parts])) if k % K_TILE == 0 else None
    data = torch.from_numpy(half_bytes(codes) if form.numbers in HALF_BYTES else codes)
    matrix = QuantisedMatrix(
        data=data,
        scales=by_block(_stored(scales, form)),
        minima=by_block(minima[0]).to(torch.int8 if form.units else torch.float32) if minima else None,
        units=_units(parts) if form.units else None,
        bounds=bounds_of(torch.from_numpy(split.bases)) if split and minima else None,
        numbers=form.numbers,
        rows=sum(len(part.codes) for part in parts),
        k=k,
        escapes=escapes_of(split) if split else no_escapes(torch.bfloat16, len(codes)),
    )
    if split and not minima:
        zero_escapes(data, form.numbers, matrix.escapes)
    return matrix


def _units(parts: Sequence[Quantised]) -> torch.Tensor:
    """[blocks, 1 or 2, k / 256, 64]."""
    found = [part.units for part in parts if part.units is not None]
    levels = zip(*found, strict=True)
    both = [np.concatenate([_padded_rows(h, h.shape[1]) for h in level]) for level in levels]
    return torch.stack([by_block(torch.from_numpy(level).half()) for level in both], dim=1)


def _stored(scales: torch.Tensor, form: Form) -> torch.Tensor:
    if form.scales is torch.uint8:
        return (scales.float().view(torch.int32) >> 23).to(torch.uint8)
    return scales.to(form.scales)


def _padded_rows(heads: np.ndarray, width: int) -> np.ndarray:
    return np.pad(heads, ((0, -len(heads) % 64), (0, width - heads.shape[1])))
