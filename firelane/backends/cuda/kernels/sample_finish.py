"""The end of a row: its token is drawn from what the scan noted and the few logits that matter, and its
log-probabilities are told."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels import sample_layout as ask
from firelane.backends.cuda.kernels.sample_numbers import (
    INFINITY,
    LEAST_WEIGHT,
    LOG2_E,
    LOWEST_KEY,
    key_of,
    log_of,
    units_of,
    weight_of,
)
from firelane.backends.cuda.kernels.sample_scan import DRAWN, GROUPS, RAW, ask_number, ask_word
from firelane.backends.cuda.kernels.sample_select import bound_of, collect, first_beyond, keep, select
from firelane.backends.cuda.kernels.sample_slots import (
    LOGIT_ROWS,
    MAX_LOGPROBS,
    ROW_COLUMNS,
    ROW_POSITION,
    ROW_SLOT,
)

TOP_LANES = tl.constexpr(ask.TOP_ROOM)
_UNIFORM_UNIT = tl.constexpr(2.0**-24)


@triton.jit
def block_masses(bests, masses, largest, scale, LANES: tl.constexpr, BLOCKS: tl.constexpr):
    """Of each block in units of the row's largest weight, int64; and the factor by which they were brought
    there, float64."""
    block = tl.arange(0, LANES)
    best = tl.load(bests + block, mask=block < BLOCKS, other=-INFINITY)
    mass = tl.load(masses + block, mask=block < BLOCKS, other=0)
    factor = weight_of(best, largest, scale).to(tl.float64)
    return (mass.to(tl.float64) * factor).to(tl.int64), factor


@triton.jit
def draw_from_all(x, uniform, masses, factors, bests, scale, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The block first, by the masses of all; then the token within it."""
    lane = tl.arange(0, masses.shape[0])
    target = (uniform * tl.sum(masses, axis=0).to(tl.float64)).to(tl.int64)
    block = tl.sum((tl.cumsum(masses, axis=0) <= target).to(tl.int32), axis=0)
    target -= tl.sum(tl.where(lane < block, masses, 0), axis=0)
    factor = tl.sum(tl.where(lane == block, factors, 0.0), axis=0)
    ids = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + ids, mask=ids < VOCAB, other=-INFINITY)
    mass = units_of(weight_of(value, tl.load(bests + block), scale))
    own = tl.minimum((target.to(tl.float64) / factor).to(tl.int64), tl.sum(mass, axis=0) - 1)
    return block * BLOCK + tl.sum((tl.cumsum(mass, axis=0) <= own).to(tl.int32), axis=0)


@triton.jit
def draw_from_few(  # limits: exempt (kernel: a row, its record and room for its lists)
    x,
    peaks,
    record,
    uniform,
    total,
    groups,
    ids,
    spare,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """After min_p, top_k and top_p. total: the mass of all tokens."""
    top_k, top_p = ask_word(record, ask.TOP_K), ask_number(record, ask.TOP_P_F)
    min_p = ask_number(record, ask.MIN_P_F)
    floor = tl.where(min_p > 0, tl.minimum(tl.maximum(min_p, LEAST_WEIGHT), 1.0), LEAST_WEIGHT)
    bound = tl.full([], LOWEST_KEY + 1, tl.int32)
    if top_k > 0:
        bound = bound_of(peaks, top_k)
    elif not (min_p > 0):
        # All tokens of less weight have together less than half of the mass that top_p leaves out.
        left_out = 0.5 * tl.minimum(1.0 - top_p.to(tl.float64), 1.0) * total.to(tl.float64)
        floor = tl.maximum(floor, (left_out * (LEAST_WEIGHT / VOCAB)).to(tl.float32))
    n = collect(x, peaks, groups, ids, bound, floor, largest, scale, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK)
    key, ties = tl.full([], LOWEST_KEY, tl.int32), tl.full([], 0, tl.int32)
    if (top_k > 0) | (min_p > 0):
        if (top_k > 0) & (n > top_k):
            key, ties = select(x, ids, n, spare, top_k.to(tl.int64), False, largest, scale, CHUNK=CHUNK)
        n, total = keep(x, ids, n, key, ties, largest, scale, CHUNK=CHUNK)
    if top_p < 1:
        target = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        key, ties = select(x, ids, n, spare, tl.maximum(target, 1), True, largest, scale, CHUNK=CHUNK)
        n, total = keep(x, ids, n, key, ties, largest, scale, CHUNK=CHUNK)
    target = (uniform * total.to(tl.float64)).to(tl.int64)
    return first_beyond(x, ids, n, target, largest, scale, CHUNK=CHUNK)


@triton.jit
def tell_alternatives(  # limits: exempt (kernel: a row, room for its lists and its outputs)
    x,
    peaks,
    wanted,
    largest,
    log_sum,
    groups,
    ids,
    spare,
    top_ids,
    top_logprobs,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The `wanted` largest logits, best first; -1 where there are no more."""
    n = collect(
        x,
        peaks,
        groups,
        ids,
        bound_of(peaks, wanted),
        -1.0,
        largest,
        LOG2_E,
        VOCAB=VOCAB,
        GROUP=GROUP,
        CHUNK=CHUNK,
    )
    if n > wanted:
        key, ties = select(x, ids, n, spare, wanted.to(tl.int64), False, largest, LOG2_E, CHUNK=CHUNK)
        n, _ = keep(x, ids, n, key, ties, largest, LOG2_E, CHUNK=CHUNK)
    tl.debug_barrier()
    lane = tl.arange(0, TOP_LANES)
    token = tl.load(ids + lane, mask=lane < n, other=-1)
    value = tl.load(x + token, mask=lane < n, other=float("nan"))
    key = key_of(value)
    better = (key[None, :] > key[:, None]) | (
        (key[None, :] == key[:, None]) & (lane[None, :] < lane[:, None])
    )
    rank = tl.sum(better.to(tl.int32), axis=1)
    logprob = tl.where(lane < n, (value.to(tl.float64) - largest - log_sum).to(tl.float32), -INFINITY)
    tl.store(top_ids + rank, token, mask=rank < wanted)
    tl.store(top_logprobs + rank, logprob, mask=rank < wanted)


@triton.jit
def finish_kernel(  # limits: exempt (kernel: what the scan noted, room for lists, outputs)
    counts,
    rows,
    asks,
    logits,
    logits_stride,
    adjusted,
    ids,
    spare,
    groups,
    bests,
    best_ids,
    masses,
    peaks,
    tokens,
    tokens_stride,
    out_tokens,
    out_logprobs,
    out_top_ids,
    out_top_logprobs,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    PEAKS: tl.constexpr,
):
    """A program a row. LANES, PEAKS: powers of two with room for all blocks, for all groups."""
    row = tl.program_id(0)
    if row >= tl.load(counts + LOGIT_ROWS):
        return
    record = asks + row * ask.ASK_WORDS
    work = ask_word(record, ask.WORK)
    if work == 0:
        return
    GROUP: tl.constexpr = BLOCK // GROUPS
    row = row.to(tl.int64)
    raw = logits + row * logits_stride
    ids += row * VOCAB
    spare += row * VOCAB
    groups += row * (BLOCKS * GROUPS)
    block = tl.arange(0, LANES)
    group = tl.arange(0, PEAKS)
    token = tl.load(record + ask.SCORED, mask=(work & ask.DRAWS) == 0, other=0)
    if (work & ask.DRAWS) != 0:
        side = row * (2 * BLOCKS) + DRAWN * BLOCKS
        best = tl.load(bests + side + block, mask=block < BLOCKS, other=-INFINITY)
        largest = tl.max(best, axis=0)
        if largest == -INFINITY:
            token = ask_word(record, ask.LAST_RESORT)
        elif ((work & ask.SCALES) == 0) | (largest == INFINITY):
            where = tl.load(best_ids + side + block, mask=block < BLOCKS, other=0)
            token = tl.min(tl.where(best == largest, where, 0x7FFFFFFF), axis=0)
        else:
            x = raw
            if (work & ask.ADJUSTS) != 0:
                x = adjusted + row * VOCAB
            scale = ask_number(record, ask.SCALE_F)
            uniform = ask_word(record, ask.UNIFORM).to(tl.float64) * _UNIFORM_UNIT
            mass, factors = block_masses(
                bests + side, masses + side, largest, scale, LANES=LANES, BLOCKS=BLOCKS
            )
            if (work & ask.FILTERS) != 0:
                peak = tl.load(
                    peaks + side * GROUPS + group, mask=group < BLOCKS * GROUPS, other=float("nan")
                )
                token = draw_from_few(
                    x,
                    peak,
                    record,
                    uniform,
                    tl.sum(mass, axis=0),
                    groups,
                    ids,
                    spare,
                    largest,
                    scale,
                    VOCAB=VOCAB,
                    GROUP=GROUP,
                    CHUNK=CHUNK,
                )
            else:
                token = draw_from_all(
                    x, uniform, mass, factors, bests + side, scale, VOCAB=VOCAB, BLOCK=BLOCK
                )
        slot = tl.load(rows + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
        position = tl.load(rows + row * ROW_COLUMNS + ROW_POSITION)
        tl.store(tokens + slot * tokens_stride + position + 1, token)
    tl.store(out_tokens + row, token)
    if (work & ask.TELLS) != 0:
        side = row * (2 * BLOCKS) + RAW * BLOCKS
        best = tl.load(bests + side + block, mask=block < BLOCKS, other=-INFINITY)
        largest = tl.max(best, axis=0)
        mass, _ = block_masses(bests + side, masses + side, largest, LOG2_E, LANES=LANES, BLOCKS=BLOCKS)
        log_sum = tl.where(tl.abs(largest) < INFINITY, log_of(tl.sum(mass, axis=0)), float("nan"))
        known = (token >= 0) & (token < VOCAB)
        value = tl.load(raw + token, mask=known, other=float("nan"))
        tl.store(out_logprobs + row, (value.to(tl.float64) - largest - log_sum).to(tl.float32))
        wanted = ask_word(record, ask.ALTERNATIVES)
        if wanted > 0:
            peak = tl.load(peaks + side * GROUPS + group, mask=group < BLOCKS * GROUPS, other=float("nan"))
            tell_alternatives(
                raw,
                peak,
                wanted,
                largest,
                log_sum,
                groups,
                ids,
                spare,
                out_top_ids + row * MAX_LOGPROBS,
                out_top_logprobs + row * MAX_LOGPROBS,
                VOCAB=VOCAB,
                GROUP=GROUP,
                CHUNK=CHUNK,
            )
