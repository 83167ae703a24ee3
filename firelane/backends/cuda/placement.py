"""Where each weight of a program goes on the device, and what that takes: known before anything is read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import torch

from firelane.backends.cuda.matrices import ESCAPE_SHARE
from firelane.backends.cuda.shapes import K_TILE, ROW_BLOCK, round_up
from firelane.backends.cuda.step_memory import DTYPES
from firelane.program.ops import Embed, GatedLinear
from firelane.program.program import Program
from firelane.program.values import DType, Weight

ESCAPE_BYTES = 6  # of one in the lists
GRAIN_BYTES = 512  # of device memory


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A weight as an array [padded_rows, padded_k]; of a vector padded_k is 1 and there is no padding.

    first_rows: of each part, its first row there. may_split: a window is looked for, and escapes taken out;
    to_window: what is left then goes into the window form.
    """

    weight: Weight
    first_rows: tuple[int, ...]
    padded_rows: int
    padded_k: int
    may_split: bool
    to_window: bool

    @property
    def is_matrix(self) -> bool:
        return len(self.weight.shape) == 2

    @property
    def k(self) -> int:
        return self.weight.shape[1] if self.is_matrix else 1

    @property
    def blocks(self) -> int:
        return self.padded_rows // ROW_BLOCK

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.weight.dtype] if self.is_matrix else torch.float32

    @property
    def row_bytes(self) -> int:
        return self.padded_k * self.dtype.itemsize

    @property
    def plain_bytes(self) -> int:
        return self.padded_rows * self.row_bytes

    @property
    def gaps(self) -> Iterator[tuple[int, int]]:
        """Rows of padding, first .. last - 1, behind each part that has any."""
        ends = (*self.first_rows[1:], self.padded_rows)
        for first, count, end in zip(self.first_rows, self.weight.parts, ends, strict=True):
            if first + count < end:
                yield first + count, end

    @property
    def most_bytes(self) -> int:
        """On the device, if it has a window where one is looked for."""
        if not self.is_matrix:
            return round_up(self.plain_bytes, GRAIN_BYTES)
        size = self.padded_rows * self.padded_k
        escapes = size // ESCAPE_SHARE if self.may_split else 0
        data = size + size // 2 + self.blocks if self.to_window else self.plain_bytes
        return data + escapes * ESCAPE_BYTES + 4 * self.blocks + 5 * GRAIN_BYTES


def placements(program: Program, mode: str) -> tuple[Placement, ...]:
    """All weights in order of first use. mode: as ExecutorRequest.weights; "auto" is "lossless" here."""
    gated = {op.weight for op in program.ops if isinstance(op, GatedLinear)}
    multiplied = {w for op in program.ops if not isinstance(op, Embed) for w in op.weights}
    return tuple(_place(w, mode, gated=w in gated, multiplied=w in multiplied) for w in program.weights)


def may_be_window(program: Program, weight: Weight, mode: str) -> bool:
    """Whether `weight` will be in the window form, if it has a window."""
    return any(p.to_window for p in placements(program, mode) if p.weight == weight)


def staging_bytes(program: Program, mode: str = "lossless") -> int:
    """Of the device, beside the weights while they are loaded: the largest matrix that is packed."""
    return max((p.plain_bytes for p in placements(program, mode) if p.to_window), default=0)


def planned_bytes(program: Program, mode: str) -> int:
    """Of the device, at most, if all matrices have a window that may; one without takes 16 bits a weight in
    any mode.
    """
    return sum(p.most_bytes for p in placements(program, mode))


def _place(weight: Weight, mode: str, *, gated: bool, multiplied: bool) -> Placement:
    if len(weight.shape) == 1:
        rows, k, padded_k = sum(weight.parts), 1, 1
        first_rows = tuple(accumulate(weight.parts[:-1], initial=0))
    else:
        k = weight.shape[1]
        padded_k = round_up(k, K_TILE)
        heights = [round_up(n, ROW_BLOCK) for n in weight.parts] if gated else weight.parts
        first_rows = tuple(accumulate(heights[:-1], initial=0))
        rows = round_up(sum(heights), ROW_BLOCK)
    has_form = len(weight.shape) == 2 and weight.dtype is DType.BF16 and k == padded_k
    return Placement(
        weight=weight,
        first_rows=first_rows,
        padded_rows=rows,
        padded_k=padded_k,
        may_split=has_form and (multiplied or mode != "bf16"),
        to_window=has_form and mode != "bf16",
    )
