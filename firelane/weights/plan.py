"""The plan: each weight's packed format and its place in the packed file, from the Program alone."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from math import prod

import numpy as np

from firelane.program.ops import GatedLinear
from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import FORMAT_VERSION, Format, packed_rows, packed_shape, round_up

MATRIX_ALIGNMENT_BYTES = 4096
VECTOR_ALIGNMENT_BYTES = 64


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A weight in its packed form: `nbytes` bytes at `offset`, an array of `shape` and format.dtype."""

    weight: Weight
    format: Format
    interleave: bool
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.format.dtype).itemsize


def plan(program: Program) -> tuple[PackedWeight, ...]:
    """Places all weights in order of first use."""
    gated = {weight for op in program.ops if isinstance(op, GatedLinear) for weight in op.weights}
    placed: list[PackedWeight] = []
    end = 0
    for weight in program.weights:
        matrix = len(weight.shape) == 2
        offset = round_up(end, MATRIX_ALIGNMENT_BYTES if matrix else VECTOR_ALIGNMENT_BYTES)
        placed.append(_place(weight, interleave=weight in gated, offset=offset))
        end = offset + placed[-1].nbytes
    return tuple(placed)


def plan_hash(placed: tuple[PackedWeight, ...]) -> str:
    """Changes with all that the packed bytes depend on besides the checkpoint."""
    digest = hashlib.sha256(f"format {FORMAT_VERSION}\n".encode())
    for p in placed:
        w = p.weight
        digest.update(
            f"{w.name} {w.tensors} {w.parts} {p.shape} {p.format} {p.interleave} {p.offset}\n".encode()
        )
    return digest.hexdigest()


def total_bytes(placed: tuple[PackedWeight, ...]) -> int:
    return placed[-1].offset + placed[-1].nbytes if placed else 0


def _place(weight: Weight, *, interleave: bool, offset: int) -> PackedWeight:
    if len(weight.shape) == 1:
        format_ = Format.VECTOR_F32
    else:
        format_ = Format.PANEL_BF16 if weight.dtype is DType.BF16 else Format.PANEL_F32
    rows = packed_rows(weight.parts, interleave=interleave)
    shape = packed_shape(format_, rows, weight.shape[-1])
    return PackedWeight(weight=weight, format=format_, interleave=interleave, shape=shape, offset=offset)
