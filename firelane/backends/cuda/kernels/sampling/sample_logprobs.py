"""Log-probabilities of the raw logits: of a row's token, and of the best alternatives."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sampling import sample_layout as layout
from firelane.backends.cuda.kernels.sampling.sample_numbers import INFINITY, LOG2_E, key_of, log_of
from firelane.backends.cuda.kernels.sampling.sample_scan import load_int
from firelane.backends.cuda.kernels.sampling.sample_select import bound_of, collect, keep, select
from firelane.backends.cuda.kernels.sampling.sample_summary import group_masses, largest_of, read_peaks

TOP_LANES = tl.constexpr(layout.TOP_ROOM)


class LogprobOutputs(NamedTuple):
    """Places of a row's log-probabilities (SampleOutputs)."""

    logprob: Any
    top_ids: Any
    top_logprobs: Any


@triton.jit
def store_alternatives(
    x,
    peaks,
    wanted,
    largest,
    log_sum,
    lists,
    out,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The `wanted` largest logits, best first; -1 where there are no more."""
    bound = bound_of(peaks, wanted)
    n, least, greatest = collect(  # pyright: ignore[reportGeneralTypeIssues]
        x, peaks, lists, bound, -1.0, largest, LOG2_E, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK
    )
    if n > wanted:
        key, ties, _ = select(
            lists.logits, n, least, greatest, wanted.to(tl.int64), False, largest, LOG2_E, CHUNK=CHUNK
        )
        n, _, least, greatest = keep(x, lists, n, key, ties, largest, LOG2_E, CHUNK=CHUNK)
    tl.debug_barrier()
    lane = tl.arange(0, TOP_LANES)
    token = tl.load(lists.ids + lane, mask=lane < n, other=-1)
    value = tl.load(lists.logits + lane, mask=lane < n, other=float("nan"))
    key = key_of(value)
    better = (key[None, :] > key[:, None]) | (
        (key[None, :] == key[:, None]) & (lane[None, :] < lane[:, None])
    )
    rank = tl.sum(better.to(tl.int32), axis=1)
    logprob = tl.where(lane < n, (value.to(tl.float64) - largest - log_sum).to(tl.float32), -INFINITY)
    tl.store(out.top_ids + rank, token, mask=rank < wanted)
    tl.store(out.top_logprobs + rank, logprob, mask=rank < wanted)


@triton.jit
def store_reported(x, ids, count, largest, log_sum, out, VOCAB: tl.constexpr):
    """The `count` tokens of `ids`, in their order; -inf for one that is not in the vocabulary."""
    lane = tl.arange(0, TOP_LANES)
    token = tl.load(ids + lane, mask=lane < count, other=-1)
    known = (token >= 0) & (token < VOCAB)
    value = tl.load(x + token, mask=known, other=0.0)
    logprob = tl.where(known, (value.to(tl.float64) - largest - log_sum).to(tl.float32), -INFINITY)
    tl.store(out.top_ids + lane, token, mask=lane < count)
    tl.store(out.top_logprobs + lane, logprob, mask=lane < count)


@triton.jit
def store_logprobs(  # limits: exempt (kernel: a row, what was noted of it, its lists and outputs)
    x,
    token,
    record,
    summary,
    lists,
    named,
    out,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    PEAKS: tl.constexpr,
):
    """The log-probability of `token`, NaN where it is none, and the alternatives that the row asks for.
    named: tokens that its slot names."""
    largest = largest_of(summary, LANES=LANES, BLOCKS=BLOCKS)
    mass = group_masses(summary, largest, LOG2_E, PEAKS=PEAKS, BLOCKS=BLOCKS)
    log_sum = tl.where(tl.abs(largest) < INFINITY, log_of(tl.sum(mass, axis=0)), float("nan"))
    value = tl.load(x + token, mask=(token >= 0) & (token < VOCAB), other=float("nan"))
    tl.store(out.logprob, (value.to(tl.float64) - largest - log_sum).to(tl.float32))
    wanted, count = load_int(record, layout.ALTERNATIVES), load_int(record, layout.REPORTED)
    if count > 0:
        store_reported(x, named, count, largest, log_sum, out, VOCAB=VOCAB)
    elif wanted > 0:
        peaks = read_peaks(summary, PEAKS=PEAKS, BLOCKS=BLOCKS)
        store_alternatives(
            x, peaks, wanted, largest, log_sum, lists, out, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK
        )
