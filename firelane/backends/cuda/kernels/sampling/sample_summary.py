"""The scan's summary of a row: by block the largest logit, by group its peak and its mass."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sampling import sample_layout
from firelane.backends.cuda.kernels.sampling.sample_numbers import INFINITY, weight_of

GROUPS = tl.constexpr(sample_layout.GROUPS)
RAW = tl.constexpr(0)
DRAWN = tl.constexpr(1)
"""The sides of a row: its raw logits, and those that it draws by."""


class SummaryOperand(NamedTuple):
    """The scan's notes of all rows (SampleScratch), or of one side of one row."""

    bests: Any
    best_ids: Any
    masses: Any
    peaks: Any


@triton.jit
def summary_from(rows, block):
    """The summary from number `block` of all blocks on."""
    groups = block * GROUPS
    return SummaryOperand(
        rows.bests + block, rows.best_ids + block, rows.masses + groups, rows.peaks + groups
    )


@triton.jit
def largest_of(summary, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    block = tl.arange(0, LANES)
    return tl.max(tl.load(summary.bests + block, mask=block < BLOCKS, other=-INFINITY), axis=0)


@triton.jit
def first_best(summary, largest, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    block = tl.arange(0, LANES)
    best = tl.load(summary.bests + block, mask=block < BLOCKS, other=-INFINITY)
    ids = tl.load(summary.best_ids + block, mask=block < BLOCKS, other=0)
    return tl.min(tl.where(best == largest, ids, 0x7FFFFFFF), axis=0)


@triton.jit
def read_peaks(summary, PEAKS: tl.constexpr, BLOCKS: tl.constexpr):
    group = tl.arange(0, PEAKS)
    return tl.load(summary.peaks + group, mask=group < BLOCKS * GROUPS, other=float("nan"))


@triton.jit
def group_masses(summary, largest, scale, PEAKS: tl.constexpr, BLOCKS: tl.constexpr):
    """Masses of groups, int64, in units of the row's largest weight; the scan stored them in units of their
    block's."""
    group = tl.arange(0, PEAKS)
    known = group < BLOCKS * GROUPS
    best = tl.load(summary.bests + group // GROUPS, mask=known, other=-INFINITY)
    mass = tl.load(summary.masses + group, mask=known, other=0)
    return (mass.to(tl.float64) * weight_of(best, largest, scale).to(tl.float64)).to(tl.int64)
