"""Placement of each weight of a program on the device, and what that takes: known before anything is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK, round_up
from firelane.backends.cuda.step.kv_pages import DTYPES
from firelane.backends.cuda.step.sum_order import is_segmented
from firelane.backends.cuda.weights.matrices import ESCAPE_SHARE
from firelane.backends.cuda.weights.quantised_weights import NOTHING_STORED, Stored
from firelane.program.program import Program
from firelane.program.values import DType, Weight

ESCAPE_BYTES = 6  # of one in the lists
GRAIN_BYTES = 512  # of device memory


@dataclass(frozen=True)
class Segment:
    """Rows of a weight, counted over all its matrices, that lie one behind the other on the device from row
    `at` on."""

    rows: range
    at: int


@dataclass(frozen=True, kw_only=True)
class Placement:
    """A weight as an array [padded_rows, padded_k]; of a vector, or one for each expert, padded_k is 1 and
    there is no padding.

    may_split: a range is looked for, and escapes taken out; to_coded: what is left then goes into the
    coded form. stored: of a weight that keeps its codes.
    """

    weight: Weight
    padded_rows: int
    padded_k: int
    may_split: bool
    to_coded: bool
    stored: Stored | None = None

    @property
    def is_matrix(self) -> bool:
        return is_matrix(self.weight)

    @property
    def k(self) -> int:
        return self.weight.k

    @property
    def blocks(self) -> int:
        return self.padded_rows // ROW_BLOCK

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.weight.dtype] if self.is_matrix else torch.float32

    @property
    def row_parts(self) -> tuple[int, ...]:
        """Bytes of a row in each of the arrays that the weight is read into."""
        plain = self.padded_k * self.dtype.itemsize
        return (plain,) if self.stored is None else self.stored.row_bytes(self.padded_k)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row as it is read."""
        return sum(self.row_parts)

    @property
    def plain_bytes(self) -> int:
        """Bytes as a plain array."""
        return self.padded_rows * self.padded_k * self.dtype.itemsize

    @property
    def staging_bytes(self) -> int:
        """Beside the weight, while it is packed: as a plain array, and its scales as they were read."""
        if self.stored is not None:
            return self.plain_bytes + self.padded_rows * sum(self.row_parts[1:])
        return self.plain_bytes if self.to_coded else 0

    @property
    def segments(self) -> Iterator[Segment]:
        """All of the weight, in order: a matrix, or each half of a gated one, is padded by itself."""
        if not self.is_matrix:
            yield Segment(range(self.weight.height), 0)
            return
        step = self.weight.rows // (2 if self.weight.layout.is_gated else 1)
        for number, first in enumerate(range(0, self.weight.height, step)):
            yield Segment(range(first, first + step), number * round_up(step, ROW_BLOCK))

    @property
    def gaps(self) -> Iterator[tuple[int, int]]:
        """Rows of padding, first .. last - 1, behind each segment that has any."""
        segments = list(self.segments)
        ends = (*(segment.at for segment in segments[1:]), self.padded_rows)
        for segment, end in zip(segments, ends, strict=True):
            if segment.at + len(segment.rows) < end:
                yield segment.at + len(segment.rows), end

    @property
    def most_bytes(self) -> int:
        """On the device, if it has a range where one is looked for."""
        if not self.is_matrix:
            return round_up(self.plain_bytes, GRAIN_BYTES)
        size = self.padded_rows * self.padded_k
        escapes = size // ESCAPE_SHARE if self.may_split else 0
        data = size + size // 2 + self.blocks if self.to_coded else self.plain_bytes
        if self.stored is not None:
            data = self.padded_rows * self.row_bytes + 8 * self.blocks + 2 * GRAIN_BYTES
        return data + escapes * ESCAPE_BYTES + 4 * self.blocks + 5 * GRAIN_BYTES


def placements(
    program: Program, mode: str, stored: Mapping[str, Stored] = NOTHING_STORED
) -> tuple[Placement, ...]:
    """All weights in order of first use. mode: as ExecutorConfig.weights; "auto" is "lossless" here.
    stored: weights that keep their codes."""
    multiplied = {product.weight for product in program.products}
    # Ranges of exponents belong to whole rows of whole blocks, which ranks cut: sums would depend on that.
    has_ranges = not is_segmented(program)
    return tuple(
        _place(w, mode, stored.get(w.name), multiplied=w in multiplied, has_ranges=has_ranges)
        for w in program.weights
    )


def may_be_coded(program: Program, weight: Weight, mode: str) -> bool:
    """Whether `weight` will be in the coded form, if it has a range."""
    return any(p.to_coded for p in placements(program, mode) if p.weight == weight)


def staging_bytes(
    program: Program, mode: str = "lossless", stored: Mapping[str, Stored] = NOTHING_STORED
) -> int:
    """Bytes of the device that loading needs beside the weights: the largest matrix that is packed."""
    return max((p.staging_bytes for p in placements(program, mode, stored)), default=0)


def planned_bytes(program: Program, mode: str, stored: Mapping[str, Stored] = NOTHING_STORED) -> int:
    """Bytes of the device that weights take at most, if all matrices have a range that may; one without takes
    16 bits a weight in any mode, but for those that keep their codes."""
    return sum(p.most_bytes for p in placements(program, mode, stored))


def is_matrix(weight: Weight) -> bool:
    """Whether it is multiplied, or a table of rows: experts' biases are no more than numbers."""
    return weight.k > 1


def padded_rows(weight: Weight) -> int:
    """Rows of a weight's array on the device."""
    if not is_matrix(weight):
        return weight.height
    halves = 2 if weight.layout.is_gated else 1
    return weight.matrices * halves * round_up(weight.rows // halves, ROW_BLOCK)


def _place(
    weight: Weight, mode: str, stored: Stored | None, *, multiplied: bool, has_ranges: bool
) -> Placement:
    padded_k = round_up(weight.k, K_TILE) if is_matrix(weight) else 1
    has_form = has_ranges and is_matrix(weight) and weight.dtype is DType.BF16 and weight.k == padded_k
    return Placement(
        weight=weight,
        padded_rows=padded_rows(weight),
        padded_k=padded_k,
        may_split=has_form and (multiplied or mode != "bf16"),
        to_coded=has_form and mode != "bf16" and stored is None,
        stored=stored,
    )
