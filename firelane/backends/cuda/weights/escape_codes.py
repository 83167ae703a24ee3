"""Escapes of a quantised matrix: what makes them zero in it."""

from __future__ import annotations

import torch
from torch import Tensor

from firelane.backends.cuda.device.shapes import K_TILE, ROW_BLOCK
from firelane.backends.cuda.weights.matrices import FP4, INT4, RANGE, ROW_SHIFT, Escapes

ZEROS = {INT4: 8, FP4: 0}
"""Codes of zero, of four bits; of eight bits it is 0."""
HALF = K_TILE // 2


def bounds_of(bases: Tensor) -> Tensor:
    """int32 [blocks, 2]: the least power of two of a block's range and the first one above it, as bf16, twice
    each."""
    first = (bases.to(torch.int32) + 1) << 7
    both = torch.stack([first, first + (RANGE << 7)], dim=1)
    return both | both << 16


def zero_escapes(data: Tensor, numbers: str, escapes: Escapes) -> None:
    """Give them the code of zero, in place."""
    rows, inputs = _places(escapes)
    if numbers not in ZEROS:
        data[rows, inputs] = 0
        return
    places = inputs // K_TILE * HALF + inputs % HALF
    is_upper = inputs % K_TILE >= HALF
    for here, kept, zero in ((~is_upper, 0xF0, ZEROS[numbers]), (is_upper, 0x0F, ZEROS[numbers] << 4)):
        at = rows[here], places[here]
        data[at] = data[at] & kept | zero


def _places(escapes: Escapes) -> tuple[Tensor, Tensor]:
    """The row and the input of each."""
    counts = torch.diff(escapes.starts).to(torch.int64)
    blocks = torch.repeat_interleave(torch.arange(len(counts), device=counts.device), counts)
    where = escapes.where[: len(blocks)].to(torch.int64)
    return blocks * ROW_BLOCK + (where >> ROW_SHIFT), where & ((1 << ROW_SHIFT) - 1)
