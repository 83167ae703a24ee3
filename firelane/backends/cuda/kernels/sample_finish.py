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
from firelane.backends.cuda.kernels.sample_select import (
    bound_of,
    collect,
    first_beyond,
    keep,
    needless_weight,
    select,
)
from firelane.backends.cuda.kernels.sample_slots import (
    MAX_LOGPROBS,
    ROW_COLUMNS,
    ROW_POSITION,
    ROW_SLOT,
)

TOP_LANES = tl.constexpr(ask.TOP_ROOM)
_UNIFORM_UNIT = tl.constexpr(2.0**-24)


@triton.jit
def group_masses(bests, masses, largest, scale, PEAKS: tl.constexpr, BLOCKS: tl.constexpr):
    """Of each group, int64, in units of the row's largest weight; the scan noted them in units of their
    block's."""
    group = tl.arange(0, PEAKS)
    known = group < BLOCKS * GROUPS
    best = tl.load(bests + group // GROUPS, mask=known, other=-INFINITY)
    mass = tl.load(masses + group, mask=known, other=0)
    return (mass.to(tl.float64) * weight_of(best, largest, scale).to(tl.float64)).to(tl.int64)


@triton.jit
def draw_from_all(  # limits: exempt (kernel: a row and its notes)
    x,
    uniform,
    masses,
    bests,
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
    best = tl.load(bests + group // GROUPS)
    ids = group * GROUP + tl.arange(0, GROUP)
    mass = units_of(weight_of(tl.load(x + ids, mask=ids < VOCAB, other=-INFINITY), best, scale))
    own = (target.to(tl.float64) / weight_of(best, largest, scale).to(tl.float64)).to(tl.int64)
    own = tl.minimum(own, tl.sum(mass, axis=0) - 1)
    return group * GROUP + tl.sum((tl.cumsum(mass, axis=0) <= own).to(tl.int32), axis=0)


@triton.jit
def draw_from_few(  # limits: exempt (kernel: a row, its record, its notes and room for its lists)
    x,
    record,
    uniform,
    peaks,
    masses,
    groups,
    ids,
    values,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT_CHUNK: tl.constexpr,
):
    """After min_p, top_k and top_p."""
    top_k, top_p = ask_word(record, ask.TOP_K), ask_number(record, ask.TOP_P_F)
    min_p = ask_number(record, ask.MIN_P_F)
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
        x, peaks, groups, ids, values, bound, floor, largest, scale, VOCAB=VOCAB, GROUP=GROUP, CHUNK=CHUNK
    )
    key, ties = tl.full([], LOWEST_KEY, tl.int32), tl.full([], 0, tl.int32)
    if (top_k > 0) | (min_p > 0):
        if (top_k > 0) & (n > top_k):
            key, ties, _ = select(
                values,
                n,
                least,
                greatest,
                top_k.to(tl.int64),
                False,
                largest,
                scale,
                CHUNK=CHUNK,
                SPLIT_CHUNK=SPLIT_CHUNK,
            )
        n, total, least, greatest = keep(x, ids, values, n, key, ties, largest, scale, CHUNK=CHUNK)
        key, ties = tl.full([], LOWEST_KEY, tl.int32), tl.full([], 0, tl.int32)
    if top_p < 1:
        target = tl.ceil(top_p.to(tl.float64) * total.to(tl.float64)).to(tl.int64)
        key, ties, total = select(
            values,
            n,
            least,
            greatest,
            tl.maximum(target, 1),
            True,
            largest,
            scale,
            CHUNK=CHUNK,
            SPLIT_CHUNK=SPLIT_CHUNK,
        )
    target = (uniform * total.to(tl.float64)).to(tl.int64)
    return first_beyond(x, ids, n, key, ties, target, largest, scale, CHUNK=CHUNK)


@triton.jit
def tell_alternatives(  # limits: exempt (kernel: a row, room for its lists and its outputs)
    x,
    peaks,
    wanted,
    largest,
    log_sum,
    groups,
    ids,
    values,
    top_ids,
    top_logprobs,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT_CHUNK: tl.constexpr,
):
    """The `wanted` largest logits, best first; -1 where there are no more."""
    n, least, greatest = collect(  # pyright: ignore[reportGeneralTypeIssues]
        x,
        peaks,
        groups,
        ids,
        values,
        bound_of(peaks, wanted),
        -1.0,
        largest,
        LOG2_E,
        VOCAB=VOCAB,
        GROUP=GROUP,
        CHUNK=CHUNK,
    )
    if n > wanted:
        key, ties, _ = select(
            values,
            n,
            least,
            greatest,
            wanted.to(tl.int64),
            False,
            largest,
            LOG2_E,
            CHUNK=CHUNK,
            SPLIT_CHUNK=SPLIT_CHUNK,
        )
        n, _, least, greatest = keep(x, ids, values, n, key, ties, largest, LOG2_E, CHUNK=CHUNK)
    tl.debug_barrier()
    lane = tl.arange(0, TOP_LANES)
    token = tl.load(ids + lane, mask=lane < n, other=-1)
    value = tl.load(values + lane, mask=lane < n, other=float("nan"))
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
    rows,
    asks,
    logits,
    logits_stride,
    adjusted,
    ids,
    values,
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
    SPLIT_CHUNK: tl.constexpr,
    LANES: tl.constexpr,
    PEAKS: tl.constexpr,
):
    """A program a row. LANES, PEAKS: powers of two with room for all blocks, for all groups."""
    row = tl.program_id(0).to(tl.int64)
    record = asks + row * ask.ASK_WORDS
    work = ask_word(record, ask.WORK)
    if work == 0:
        return
    GROUP: tl.constexpr = BLOCK // GROUPS
    raw = logits + row * logits_stride
    ids += row * VOCAB
    values += row * VOCAB
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
            mass = group_masses(
                bests + side, masses + side * GROUPS, largest, scale, PEAKS=PEAKS, BLOCKS=BLOCKS
            )
            if (work & ask.FILTERS) != 0:
                peak = tl.load(
                    peaks + side * GROUPS + group, mask=group < BLOCKS * GROUPS, other=float("nan")
                )
                token = draw_from_few(
                    x,
                    record,
                    uniform,
                    peak,
                    mass,
                    groups,
                    ids,
                    values,
                    largest,
                    scale,
                    VOCAB=VOCAB,
                    GROUP=GROUP,
                    CHUNK=CHUNK,
                    SPLIT_CHUNK=SPLIT_CHUNK,
                )
            else:
                token = draw_from_all(
                    x, uniform, mass, bests + side, largest, scale, VOCAB=VOCAB, GROUP=GROUP
                )
        slot = tl.load(rows + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
        position = tl.load(rows + row * ROW_COLUMNS + ROW_POSITION)
        tl.store(tokens + slot * tokens_stride + position + 1, token)
    tl.store(out_tokens + row, token)
    if (work & ask.TELLS) != 0:
        side = row * (2 * BLOCKS) + RAW * BLOCKS
        best = tl.load(bests + side + block, mask=block < BLOCKS, other=-INFINITY)
        largest = tl.max(best, axis=0)
        mass = group_masses(bests + side, masses + side * GROUPS, largest, LOG2_E, PEAKS=PEAKS, BLOCKS=BLOCKS)
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
                values,
                out_top_ids + row * MAX_LOGPROBS,
                out_top_logprobs + row * MAX_LOGPROBS,
                VOCAB=VOCAB,
                GROUP=GROUP,
                CHUNK=CHUNK,
                SPLIT_CHUNK=SPLIT_CHUNK,
            )
