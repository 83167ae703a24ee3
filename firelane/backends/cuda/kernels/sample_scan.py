"""One look at each block of each row's logits: they are adjusted as the row asks, and of the raw ones and of
those that it draws by the largest, the mass and the groups' peaks are noted."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels import sample_layout as ask
from firelane.backends.cuda.kernels.sample_notes import DRAWN, GROUPS, RAW
from firelane.backends.cuda.kernels.sample_numbers import INFINITY, LOG2_E, units_of, weight_of
from firelane.backends.cuda.kernels.sample_slots import BIAS_LANES, STOP_LANES


@triton.jit
def ask_word(record, index: tl.constexpr):
    return tl.load(record + index)


@triton.jit
def ask_number(record, index: tl.constexpr):
    return tl.load(record + index).to(tl.float32, bitcast=True)


@triton.jit
def penalized(x, tally, record):
    """Repetition over what prompt and output hold; frequency and presence over the output."""
    repetition = ask_number(record, ask.REPETITION_F)
    count = (tally & ~ask.PROMPT).to(tl.float32)
    seen = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    y = seen - ask_number(record, ask.FREQUENCY_F) * count
    y = tl.where(count > 0, y - ask_number(record, ask.PRESENCE_F), y)
    return tl.where(tally != 0, y, x)


@triton.jit
def add_bias(x, ids, values, first, size):
    """x: where the block's first token, `first`, lies. The ids are distinct."""
    lane = tl.arange(0, BIAS_LANES)
    at = tl.load(ids + lane) - first
    inside = (at >= 0) & (at < size)
    y = tl.load(x + at, mask=inside, other=0.0) + tl.load(values + lane)
    tl.store(x + at, y, mask=inside)


@triton.jit
def ban(x, ids, first, size):
    at = tl.load(ids + tl.arange(0, STOP_LANES)) - first
    tl.store(x + at, tl.full([STOP_LANES], -INFINITY, tl.float32), mask=(at >= 0) & (at < size))


@triton.jit
def adjusted_block(  # limits: exempt (kernel: the row's lists)
    x,
    ids,
    row,
    work,
    record,
    adjusted,
    tally,
    bias_ids,
    bias_values,
    bans,
    allowed,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The block's logits after penalties, bias, bans and mask; they are kept in `adjusted`, too."""
    known = ids < VOCAB
    if work & ask.PENALIZES:
        x = penalized(x, tl.load(tally + row * VOCAB + ids, mask=known, other=0), record)
    adjusted += row * VOCAB
    if work & (ask.BIASES | ask.BANS):
        first = tl.program_id(0) * BLOCK
        size = tl.minimum(BLOCK, VOCAB - first)
        tl.store(adjusted + ids, x, mask=known)
        tl.debug_barrier()
        if work & ask.BIASES:
            add_bias(
                adjusted + first, bias_ids + row * BIAS_LANES, bias_values + row * BIAS_LANES, first, size
            )
            tl.debug_barrier()
        if work & ask.BANS:
            ban(adjusted + first, bans + row * STOP_LANES, first, size)
            tl.debug_barrier()
        x = tl.load(adjusted + ids, mask=known, other=-INFINITY)
    if work & ask.MASKS:
        WORDS: tl.constexpr = VOCAB // 32 + 1
        bits = tl.load(allowed + row * WORDS + (ids >> 5), mask=known, other=0)
        x = tl.where((bits >> (ids & 31)) & 1 != 0, x, -INFINITY)
    tl.debug_barrier()
    tl.store(adjusted + ids, x, mask=known)
    return x


@triton.jit
def measure(  # limits: exempt (kernel: what is noted of a block)
    x,
    ids,
    at,
    work,
    scale,
    bests,
    best_ids,
    masses,
    peaks,
    WEIGHS: tl.constexpr,
    LOOKS: tl.constexpr,
):
    """x: [GROUPS, n]; at: of this block among all. WEIGHS, LOOKS: bits of `work` of which one must be set for
    the mass, for the peaks, to be wanted."""
    x = tl.where(x == x, x, -INFINITY)
    peak = tl.max(x, axis=1)
    best = tl.max(peak, axis=0)
    tl.store(bests + at, best)
    tl.store(best_ids + at, tl.min(tl.min(tl.where(x == best, ids, 0x7FFFFFFF), axis=1), axis=0))
    if work & WEIGHS:
        mass = tl.sum(units_of(weight_of(x, best, scale)), axis=1)
        tl.store(masses + at * GROUPS + tl.arange(0, GROUPS), mass)
    if work & LOOKS:
        tl.store(peaks + at * GROUPS + tl.arange(0, GROUPS), peak)


@triton.jit
def scan_kernel(  # limits: exempt (kernel: a row's lists and what is noted of its blocks)
    asks,
    logits,
    logits_stride,
    adjusted,
    tally,
    bias_ids,
    bias_values,
    bans,
    allowed,
    bests,
    best_ids,
    masses,
    peaks,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A program a block of a row."""
    row = tl.program_id(1).to(tl.int64)
    record = asks + row * ask.ASK_WORDS
    work = ask_word(record, ask.WORK)
    if work == 0:
        return
    GROUP: tl.constexpr = BLOCK // GROUPS
    block = tl.program_id(0)
    ids = block * BLOCK + tl.arange(0, GROUPS)[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    x = tl.load(logits + row * logits_stride + ids, mask=ids < VOCAB, other=-INFINITY)
    at = row * 2 * BLOCKS + block
    if work & ask.TELLS:
        measure(
            x,
            ids,
            at + RAW * BLOCKS,
            work,
            LOG2_E,
            bests,
            best_ids,
            masses,
            peaks,
            WEIGHS=ask.TELLS,
            LOOKS=ask.TELLS,
        )
    if work & ask.DRAWS:
        if work & ask.ADJUSTS:
            x = adjusted_block(
                x,
                ids,
                row,
                work,
                record,
                adjusted,
                tally,
                bias_ids,
                bias_values,
                bans,
                allowed,
                VOCAB=VOCAB,
                BLOCK=BLOCK,
            )
        measure(
            x,
            ids,
            at + DRAWN * BLOCKS,
            work,
            ask_number(record, ask.SCALE_F),
            bests,
            best_ids,
            masses,
            peaks,
            WEIGHS=ask.SCALES,
            LOOKS=ask.FILTERS,
        )
