"""Weights of a quantised checkpoint on their way to the device: which of them keep their codes, and rows of
these as the device wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE
from firelane.backends.cuda.weights.matrices import FP4, FP8, HALF_BYTES, INT4, INT8, QuantisedForm
from firelane.program.program import Program
from firelane.program.recipes import Piece
from firelane.program.values import DType, Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.codebooks import Codebook
from firelane.weights.formats.codes import Codes
from firelane.weights.formats.formats import LEVELS_BLOCK, Grouping, Heads
from firelane.weights.formats.grouped import code_offset, fitted, stored_codes
from firelane.weights.packing.pieces import coded_format, read_codes

PROBED_ROWS = 64
FLOATS = {Codebook.E4M3: FP8, Codebook.E2M1: FP4}
"""Books whose codes are the bits of floats on the device."""
OTHERS_THAN_EXPONENT = -0x7F800001
"""Bits of a float32 that a power of two, and zero, has none of."""
NARROW = (torch.float16, torch.bfloat16)
"""Dtypes that scales are kept in where they lose nothing, the first such one; before them, powers of two as
their exponents, in bytes."""


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A weight as the checkpoint has it: its codes as they are read, and the form that they will probably
    have on the device, by which kernels are compiled ahead."""

    grouping: Grouping
    form: QuantisedForm

    def row_bytes(self, padded_k: int) -> tuple[int, ...]:
        """Bytes of the codes of a row, of its scales, its minima if there are any, and the units of both if
        they have two levels."""
        count, groups = 1 + self.grouping.minima, padded_k // self.grouping.group
        codes = padded_k // 2 if self.form.numbers in HALF_BYTES else padded_k
        if not self.has_levels:
            return codes, *[4 * groups] * count
        return codes, *[groups] * count, *[2 * padded_k // LEVELS_BLOCK] * count

    @property
    def has_levels(self) -> bool:
        return self.grouping.heads is Heads.LEVELS

    @property
    def dtypes(self) -> tuple[torch.dtype, ...]:
        """Dtypes of the parts whose sizes row_bytes() tells."""
        count = 1 + self.grouping.minima
        if not self.has_levels:
            return torch.uint8, *[torch.float32] * count
        return torch.uint8, *[torch.int8] * count, *[torch.float16] * count


NOTHING_STORED: Mapping[str, Stored] = MappingProxyType({})


def stored_weights(program: Program, checkpoint: Checkpoint, mode: str) -> Mapping[str, Stored]:
    """By name the weights that keep their codes. mode: as ExecutorConfig.weights. Raises CheckpointError."""
    found: dict[str, Stored] = {}
    forms: dict[tuple[Grouping, int], QuantisedForm] = {}
    for weight in program.weights if mode != "bf16" else ():
        grouping = _grouping(checkpoint, weight)
        if grouping is None:
            continue
        kind = grouping, weight.k
        if kind not in forms:
            forms[kind] = _probable_form(checkpoint, weight, grouping)
        found[weight.name] = Stored(grouping=grouping, form=forms[kind])
    return found


def _grouping(checkpoint: Checkpoint, weight: Weight) -> Grouping | None:
    """Integers of six bits and of tables become codes of eight bits; floats of four and eight bits stay."""
    if weight.k == 1 or weight.dtype is not DType.BF16:
        return None
    format_ = coded_format(checkpoint, weight)
    grouping = None if format_ is None else format_.grouping
    if grouping is None or (grouping.book is Codebook.INT and grouping.bits == 4):
        return grouping
    if grouping.book in FLOATS:
        return replace(grouping, heads=Heads.F32)
    return replace(grouping, bits=8, heads=Heads.F32, book=Codebook.INT)


def _probable_form(checkpoint: Checkpoint, weight: Weight, grouping: Grouping) -> QuantisedForm:
    """The form that the weight's first rows have. Minima that are not whole scales leave some weights near
    zero: escapes."""
    if grouping.heads is Heads.LEVELS:
        least = torch.int8 if grouping.minima else None
        return _form(grouping, grouping.group, torch.int8, least, bounds=grouping.minima)
    piece = weight.pieces[0]
    codes = fitted(read_codes(checkpoint, piece, range(min(PROBED_ROWS, piece.height))), grouping)
    found = None if codes.minima is None else torch.from_numpy(codes.minima)
    scales, minima = narrowed(torch.from_numpy(codes.scales * scale_factor(grouping)), found)
    return _form(
        grouping,
        weight.k // scales.shape[1],
        scales.dtype,
        None if minima is None else minima.dtype,
        bounds=minima is not None and scales.dtype is torch.float32,
    )


def _form(
    grouping: Grouping, group_size: int, scales: torch.dtype, minima: torch.dtype | None, *, bounds: bool
) -> QuantisedForm:
    return QuantisedForm(
        numbers=numbers_of(grouping), group_size=group_size, scales=scales, minima=minima, bounds=bounds
    )


def numbers_of(grouping: Grouping) -> str:
    return FLOATS.get(grouping.book) or (INT4 if grouping.bits == 4 else INT8)


def scale_factor(grouping: Grouping) -> np.float32:
    """The factor of a scale on the device: numbers of e2m1 are themselves there, not twice themselves."""
    return np.float32(2 if grouping.book is Codebook.E2M1 else 1)


def narrowed(scales: Tensor, minima: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """The same scales and minima, float32 [rows, groups], in few groups and bits."""
    while scales.shape[1] % 2 == 0 and all(_is_in_pairs(part) for part in (scales, minima)):
        scales, minima = scales[:, ::2], None if minima is None else minima[:, ::2]
    return _narrow(scales), None if minima is None else _narrow(minima)


def _is_in_pairs(values: Tensor | None) -> bool:
    return values is None or torch.equal(values[:, ::2], values[:, 1::2])


def _narrow(values: Tensor) -> Tensor:
    bits = values.view(torch.int32)
    if not (bits & OTHERS_THAN_EXPONENT).any():
        return (bits >> 23).to(torch.uint8)
    for dtype in NARROW:
        found = values.to(dtype)
        if torch.equal(found.to(values.dtype), values):
            return found
    return values


def read_quantised(
    checkpoint: Checkpoint, piece: Piece, rows: range, stored: Stored, padded_k: int
) -> list[NDArray[Any]]:
    """Arrays whose sizes Stored.row_bytes() tells, each [rows, ..], in Stored.dtypes. Raises
    CheckpointError, and ValueError for a float that is no number."""
    return arrays_of(fitted(read_codes(checkpoint, piece, rows), stored.grouping), stored, padded_k)


def arrays_of(rows: Codes, stored: Stored, padded_k: int) -> list[NDArray[Any]]:
    """read_quantised() of rows that are fitted to the grouping."""
    codes = packed_codes(rows, stored.grouping, padded_k)
    if stored.has_levels:
        units = (level.units.astype(np.float16) for level in rows.levels)
        return [codes, *(level.steps for level in rows.levels), *units]
    groups = padded_k // stored.grouping.group
    scales = rows.scales * scale_factor(stored.grouping)
    heads = [scales] if rows.minima is None else [scales, rows.minima]
    return [codes, *(np.pad(h, ((0, 0), (0, groups - h.shape[1]))) for h in heads)]


def packed_codes(rows: Codes, grouping: Grouping, padded_k: int) -> NDArray[np.uint8]:
    """Codes as QuantisedMatrix.data has them. Raises ValueError for a float that is no number."""
    codes = np.pad(stored_codes(rows.codes, grouping), ((0, 0), (0, padded_k - rows.codes.shape[1])))
    if numbers_of(grouping) not in HALF_BYTES:
        return codes.view(np.uint8)
    return half_bytes((codes + np.int8(code_offset(grouping))).view(np.uint8))


def half_bytes(codes: NDArray[Any]) -> NDArray[np.uint8]:
    """Codes of four bits, [rows, k], two a byte: those of a tile's second half are the upper ones."""
    tiles = codes.reshape(len(codes), -1, 2, K_TILE // 2)
    both: NDArray[Any] = tiles[:, :, 0] | tiles[:, :, 1] << 4
    return both.reshape(len(codes), -1)
