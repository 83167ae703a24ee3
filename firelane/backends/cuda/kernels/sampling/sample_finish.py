"""The end of a row: its token is drawn by what the scan noted and the few logits that matter."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sampling import sample_layout as layout
from firelane.backends.cuda.kernels.sampling.sample_logprobs import LogprobOutputs, store_logprobs
from firelane.backends.cuda.kernels.sampling.sample_numbers import (
    INFINITY,
    LEAST_WEIGHT,
    LOWEST_KEY,
    units_of,
    weight_of,
)
from firelane.backends.cuda.kernels.sampling.sample_scan import load_float, load_int
from firelane.backends.cuda.kernels.sampling.sample_select import (
    CandidateLists,
    bound_of,
    collect,
    first_beyond,
    keep,
    needless_weight,
    select,
)
from firelane.backends.cuda.kernels.sampling.sample_slots import (
    MAX_BIAS,
    MAX_LOGPROBS,
    ROW_COLUMNS,
    ROW_POSITION,
    ROW_SLOT,
)
from firelane.backends.cuda.kernels.sampling.sample_summary import (
    DRAWN,
    GROUPS,
    RAW,
    first_best,
    group_masses,
    largest_of,
    read_peaks,
    summary_from,
)
from firelane.backends.cuda.step import tables as t

PARITY = tl.constexpr(t.PARITY)
_UNIFORM_UNIT = tl.constexpr(2.0**-24)


@triton.jit
def draw_from_all(  # limits: exempt (kernel: a row and its summary)
    x,
    uniform,
    masses,
    summary,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The group first, by the masses of all; then the token within it."""
    target = (uniform * tl.sum(masses, axis=0).to(tl.float64)).to(tl.int64)
    reached = tl.cumsum(masses, axis=0)
    group = tl.sum((reached <= target).to(tl.int32), axis=0)
    target -= tl.max(tl.where(reached <= target, reached, 0), axis=0)
    best = tl.load(summary.bests + group // GROUPS)
    ids = group * GROUP + tl.arange(0, GROUP)
    mass = units_of(weight_of(tl.load(x + ids, mask=ids < VOCAB, other=-INFINITY), best, scale))
    own = (target.to(tl.float64) / weight_of(best, largest, scale).to(tl.float64)).to(tl.int64)
    own = tl.minimum(own, tl.sum(mass, axis=0) - 1)
    return group * GROUP + tl.sum((tl.cumsum(mass, axis=0) <= own).to(tl.int32), axis=0)


@triton.jit
def draw_from_few(  # limits: exempt (kernel: a row, its record, its summary and room for its lists)
    x,
    record,
    uniform,
    peaks,
    masses,
    lists,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """After min_p, top_k and top_p."""
    top_k, top_p = load_int(record, layout.TOP_K), load_float(record, layout.TOP_P_F)
    min_p = load_float(record, layout.MIN_P_F)
    total = tl.sum(masses, axis=0)
    floor = tl.where(min_p > 0, tl.minimum(tl.maximum(min_p, LEAST_WEIGHT), 1.0), LEAST_WEIGHT)
    bound = tl.full([], LOWEST_KEY + 1, tl.int32)
    if top_k > 0:
        bound = bound_of(peaks, top_k)
    elif not (min_p > 0):  # half of what top_p leaves out is dropped unseen
        left_out = tl.minimum(1.0 - top_p.to(tl.float64), 1.0) * total.to(tl.float64)
        half = (0.5 * left_out).to(tl.int64)
        floor = needless_weight(peaks, masses, half, largest, scale, GROUP=GROUP)
    n, least, greatest = collect(
        x, peaks, lists, bound, floor, largest, scale, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK
    )
    key, ties = tl.full([], LOWEST_KEY, tl.int32), tl.full([], 0, tl.int32)
    if (top_k > 0) | (min_p > 0):
        if (top_k > 0) & (n > top_k):
            key, ties, _ = select(
                lists.logits, n, least, greatest, top_k.to(tl.int64), False, largest, scale, CHUNK=CHUNK
            )
        n, total, least, greatest = keep(x, lists, n, key, ties, largest, scale, CHUNK=CHUNK)
        key, ties = tl.full([], LOWEST_KEY, tl.int32), tl.full([], 0, tl.int32)
    if top_p < 1:
        target = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        key, ties, total = select(
            lists.logits, n, least, greatest, tl.maximum(target, 1), True, largest, scale, CHUNK=CHUNK
        )
    target = (uniform * total.to(tl.float64)).to(tl.int64)
    return first_beyond(x, lists.ids, n, key, ties, target, largest, scale, CHUNK=CHUNK)


@triton.jit
def draw(  # limits: exempt (kernel: a row, its record, its summary and room for its lists)
    x,
    record,
    work,
    summary,
    lists,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    PEAKS: tl.constexpr,
):
    largest = largest_of(summary, LANES=LANES, BLOCKS=BLOCKS)
    if largest == -INFINITY:
        token = load_int(record, layout.LAST_RESORT)
    elif ((work & layout.SCALES) == 0) | (largest == INFINITY):
        token = first_best(summary, largest, LANES=LANES, BLOCKS=BLOCKS)
    else:
        scale = load_float(record, layout.SCALE_F)
        uniform = load_int(record, layout.UNIFORM).to(tl.float64) * _UNIFORM_UNIT
        mass = group_masses(summary, largest, scale, PEAKS=PEAKS, BLOCKS=BLOCKS)
        if (work & layout.FILTERS) != 0:
            peak = read_peaks(summary, PEAKS=PEAKS, BLOCKS=BLOCKS)
            token = draw_from_few(
                x, record, uniform, peak, mass, lists, largest, scale, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK
            )
        else:
            token = draw_from_all(x, uniform, mass, summary, largest, scale, VOCAB=VOCAB, GROUP=GROUP)
    return token


@triton.jit
def finish_kernel(  # limits: exempt (kernel: what the scan noted, room for lists, outputs)
    counts,
    rows,
    records,
    logits,
    logits_stride,
    adjusted,
    lists,
    summary,
    tokens,
    tokens_stride,
    bias_ids,
    out_rows,
    out_tokens,
    out,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    PEAKS: tl.constexpr,
):
    """A program a row. LANES, PEAKS: powers of two with room for all blocks, for all groups."""
    row = tl.program_id(0).to(tl.int64)
    record = records + row * layout.ROW_WORDS
    work = load_int(record, layout.WORK)
    if work == 0:
        return
    GROUP: tl.constexpr = BLOCK // GROUPS
    raw = logits + row * logits_stride
    own = row * (BLOCKS * BLOCK)
    lists = CandidateLists(lists.groups + row * (BLOCKS * GROUPS), lists.ids + own, lists.logits + own)
    token = tl.load(record + layout.SCORED, mask=(work & layout.DRAWS) == 0, other=0)
    if (work & layout.DRAWS) != 0:
        x = raw
        if (work & layout.ADJUSTS) != 0:
            x = adjusted + own
        token = draw(
            x,
            record,
            work,
            summary_from(summary, row * (2 * BLOCKS) + DRAWN * BLOCKS),
            lists,
            VOCAB=VOCAB,
            GROUP=GROUP,
            BLOCKS=BLOCKS,
            CHUNK=CHUNK,
            LANES=LANES,
            PEAKS=PEAKS,
        )
        slot = tl.load(rows + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
        position = tl.load(rows + row * ROW_COLUMNS + ROW_POSITION)
        tl.store(tokens + slot * tokens_stride + position + 1, token)
    out_row = tl.load(counts + PARITY) * out_rows + row
    tl.store(out_tokens + out_row, token)
    if (work & layout.LOGPROBS) != 0:
        store_logprobs(
            raw,
            token,
            record,
            summary_from(summary, row * (2 * BLOCKS) + RAW * BLOCKS),
            lists,
            bias_ids + tl.load(rows + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64) * MAX_BIAS,
            LogprobOutputs(
                out.logprob + out_row,
                out.top_ids + out_row * MAX_LOGPROBS,
                out.top_logprobs + out_row * MAX_LOGPROBS,
            ),
            VOCAB=VOCAB,
            GROUP=GROUP,
            BLOCKS=BLOCKS,
            CHUNK=CHUNK,
            LANES=LANES,
            PEAKS=PEAKS,
        )
