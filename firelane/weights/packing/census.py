"""Census: how many bits a weight would take in each coded format, from a few of its panels, before anything
is packed.

A coded format is worth it below MOST_BITS. At 14 of 16 bits a product that waits for memory gains an eighth,
which decoding may well take; a quarter (12 bits and escapes) or three eighths (3-bit codes) of the weights
are escapes by then, when the formats are made for a few in a hundred. Trained and normally distributed
weights lie at 11.2 and 12.0 bits, evenly distributed bit patterns above 18, and little lies between: the
exact figure matters less than that a sample errs by much less than the two bits to bf16.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from firelane.program.program import Program
from firelane.program.values import Weight
from firelane.weights.checkpoints.checkpoint import Checkpoint
from firelane.weights.formats.coded import CODES, best_base, panel_bytes
from firelane.weights.formats.coded_native import coded_library
from firelane.weights.formats.formats import PANEL_ROWS, Format, source_rows
from firelane.weights.packing.pieces import contiguous, read_piece
from firelane.weights.packing.plan import PackedWeight, plan, takes

MOST_BITS = 14.0
MOST_PANELS, LEAST_PANELS = 4, 2  # of one weight
SAMPLE_BYTES = 32 << 20  # of all together, about
CODED = tuple(format_ for format_ in Format if format_.is_lossless)
Counts = NDArray[np.int64]


def census(
    checkpoint: Checkpoint, program: Program, weights: Sequence[Weight]
) -> dict[str, dict[Format, float]]:
    """By name the bits a weight takes in those coded formats that `weights` of the program can have and that
    are worth it, {} where none is. Reads a fixed sample: the same checkpoint always gives the same answer.
    The checkpoint has to agree with the program (check_against()). Raises CheckpointError.
    """
    placed = {p.weight: p for p in plan(program)}
    sample_bytes = SAMPLE_BYTES // max(len(weights), 1)
    # All is asked for before anything is waited for: a drive is slow at one small piece after the other.
    with ThreadPoolExecutor(checkpoint.waiting, thread_name_prefix="census") as pool:
        samples = list(pool.map(partial(_sample, checkpoint, sample_bytes), [placed[w] for w in weights]))
    found: dict[str, dict[Format, float]] = {}
    for w, sample in zip(weights, samples, strict=True):
        counts = [_count(rows, w.k) for rows in sample]
        bits = {f: estimate(counts, f, w.k) for f in CODED if counts and takes(w, f)}
        found[w.name] = {format_: b for format_, b in bits.items() if compresses(b)}
    return found


def compresses(bits: float) -> bool:
    """Whether a coded format of so many bits a weight is worth it."""
    return bits < MOST_BITS


def estimate(counts: Sequence[Counts], format_: Format, k: int) -> float:
    """Bits a weight of panels of k inputs, each given by how often each sign-and-exponent occurs in it: [512]
    each, as CodedLibrary.count() gives them. Every escape counts as listed, so that 4 bits may take less.
    """
    nbytes = sum(panel_bytes(format_, k, _escapes(panel, format_)) for panel in counts)
    return 8 * nbytes / (PANEL_ROWS * k * len(counts))


def _sample(checkpoint: Checkpoint, sample_bytes: int, p: PackedWeight) -> list[list[NDArray[Any]]]:
    """The rows of some panels, spread over the weight; none where no coded format is possible."""
    if not any(takes(p.weight, format_) for format_ in CODED):
        return []
    wanted = sample_bytes // (2 * PANEL_ROWS * p.weight.k)
    wanted = min(max(wanted, LEAST_PANELS), MOST_PANELS, p.panels)
    places = [(2 * i + 1) * p.panels // (2 * wanted) for i in range(wanted)]  # the middle of each share
    return [_panel_rows(checkpoint, p, panel) for panel in places]


def _panel_rows(checkpoint: Checkpoint, p: PackedWeight, panel: int) -> list[NDArray[Any]]:
    """The rows of each piece that lie in the panel."""
    first, last = panel * PANEL_ROWS, (panel + 1) * PANEL_ROWS
    rows = source_rows(p.weight.rows, first, last, gated=p.gated)
    return [read_piece(checkpoint, piece, within) for _, piece, within in contiguous(p.weight, rows)]


def _count(spans: list[NDArray[Any]], k: int) -> Counts:
    counts = np.zeros(512, np.int64)
    counts[0] = PANEL_ROWS * k - sum(span.size for span in spans)  # padding
    library = coded_library()
    for span in spans:
        if library is not None:
            library.count(np.ascontiguousarray(span), counts)
        else:
            counts += np.bincount((span >> 7).ravel(), minlength=512)
    return counts


def _escapes(counts: Counts, format_: Format) -> int:
    exponents = counts[:256] + counts[256:]
    if format_ is Format.PANEL_CODED3:
        base = best_base(exponents, format_)
        return int(counts.sum() - exponents[base : base + CODES].sum())
    high = exponents[0::2] + exponents[1::2]
    base = best_base(high, format_)
    zeros = counts[0] + counts[1]  # high byte 0x00: they have a code of their own
    return int(counts.sum() - zeros - high[base : base + CODES].sum())
