"""The plan: each weight's packed format, from the Program and the choice of coded formats alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np

from firelane.program.program import Program
from firelane.program.values import DType, Weight
from firelane.weights.formats import grouped
from firelane.weights.formats.coded import fits, panel_bounds
from firelane.weights.formats.formats import FORMAT_VERSION, Format, packed_rows, packed_shape

NO_FORMS: Mapping[str, Format] = MappingProxyType({})


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """A weight in its packed form: an array of `shape` and format.dtype, or of a coded format bytes that
    decode to an array of `shape`.
    """

    weight: Weight
    format: Format
    shape: tuple[int, ...]

    @property
    def is_matrix(self) -> bool:
        return self.format is not Format.VECTOR_F32

    @property
    def gated(self) -> bool:
        return self.weight.layout.is_gated

    @property
    def panels(self) -> int:
        """Panels that are packed one by one; a vector is one."""
        return self.shape[0] if self.is_matrix else 1

    @property
    def plain_bytes(self) -> int:
        """The size, of a coded format that of the decoded array."""
        return prod(self.shape) * np.dtype(self.format.plain.dtype).itemsize

    @property
    def panel_bounds(self) -> tuple[int, int]:
        """The least and the most bytes of one panel."""
        if self.format.grouping is not None:
            size = grouped.panel_bytes(self.format, self.weight.k)
            return size, size
        if self.format.is_coded:
            return panel_bounds(self.format, self.weight.k)
        return self.plain_bytes // self.panels, self.plain_bytes // self.panels


def plan(program: Program, forms: Mapping[str, Format] = NO_FORMS) -> tuple[PackedWeight, ...]:
    """All weights in order of first use. `forms` gives coded formats to matrices by weight name; where one
    cannot be (see takes()), the weight is packed as without it.
    """
    return tuple(_place(w, forms.get(w.name)) for w in program.weights)


def takes(weight: Weight, format_: Format) -> bool:
    """Whether the weight can have this coded format: a bf16 matrix whose inputs it can divide."""
    able = fits(format_, weight.k) or grouped.fits(format_, weight.k)
    return weight.is_matrix and weight.dtype is DType.BF16 and able


def plan_hash(placed: tuple[PackedWeight, ...]) -> str:
    """Changes with all that the packed bytes depend on besides the checkpoint."""
    digest = hashlib.sha256(f"format {FORMAT_VERSION}\n".encode())
    for p in placed:
        w = p.weight
        digest.update(f"{w.name} {w.shape} {w.dtype} {w.layout} {w.code} {p.shape} {p.format}\n".encode())
        digest.update("".join(f"{piece}{piece.padding or ''}\n" for piece in w.pieces).encode())
    return digest.hexdigest()


def plain_bytes(placed: tuple[PackedWeight, ...]) -> int:
    """All weights together, coded formats counted as decoded."""
    return sum(p.plain_bytes for p in placed)


def _place(weight: Weight, form: Format | None) -> PackedWeight:
    if not weight.is_matrix:
        format_ = Format.VECTOR_F32
    else:
        format_ = Format.PANEL_BF16 if weight.dtype is DType.BF16 else Format.PANEL_F32
    if form is not None and takes(weight, form):
        format_ = form
    rows = weight.matrices * packed_rows(weight.rows, gated=weight.layout.is_gated)
    return PackedWeight(weight=weight, format=format_, shape=packed_shape(format_, rows, weight.k))
