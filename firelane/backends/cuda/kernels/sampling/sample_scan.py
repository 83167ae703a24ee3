"""One look at each block of each row's logits: they are adjusted as the row asks, and of the raw ones and of
those that it draws by the largest, the mass and the groups' peaks are stored."""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sampling import sample_layout as layout
from firelane.backends.cuda.kernels.sampling.sample_numbers import INFINITY, LOG2_E, units_of, weight_of
from firelane.backends.cuda.kernels.sampling.sample_slots import BIAS_LANES, STOP_LANES
from firelane.backends.cuda.kernels.sampling.sample_summary import DRAWN, GROUPS, RAW, summary_from


@triton.jit
def load_int(record, index: tl.constexpr):
    return tl.load(record + index)


@triton.jit
def load_float(record, index: tl.constexpr):
    return tl.load(record + index).to(tl.float32, bitcast=True)


@triton.jit
def penalized(x, tally, record):
    """Repetition over what prompt and output hold; frequency and presence over the output."""
    repetition = load_float(record, layout.REPETITION_F)
    count = (tally & ~layout.PROMPT).to(tl.float32)
    seen = tl.where(x > 0, tl.div_rn(x, repetition), x * repetition)
    y = seen - load_float(record, layout.FREQUENCY_F) * count
    y = tl.where(count > 0, y - load_float(record, layout.PRESENCE_F), y)
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
def adjust_block(  # limits: exempt (kernel: the row's lists)
    x,
    record,
    work,
    adjusted,
    tally,
    bias_ids,
    bias_values,
    bans,
    allowed,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """adjusted: the block's logits after penalties, mask, bias and bans; what the mask forbids stays -inf."""
    PADDED: tl.constexpr = (VOCAB + 63) // 64 * 64  # so much of a row may be read, and most of it at once
    CHUNK: tl.constexpr = BLOCK // 4
    first = tl.program_id(0) * BLOCK
    size = tl.minimum(BLOCK, VOCAB - first)
    for start in range(0, BLOCK, CHUNK):
        ids = first + start + tl.arange(0, CHUNK)
        known = ids < VOCAB
        value = tl.load(x + ids, mask=ids < PADDED, other=-INFINITY)
        if work & layout.PENALIZES:
            value = penalized(value, tl.load(tally + ids), record)
        if work & layout.MASKS:
            bits = tl.load(allowed + (ids >> 5), mask=known, other=0)
            value = tl.where((bits >> (ids & 31)) & 1 != 0, value, -INFINITY)
        tl.store(adjusted + ids, value)
    tl.debug_barrier()
    if work & layout.BIASES:
        add_bias(adjusted + first, bias_ids, bias_values, first, size)
        tl.debug_barrier()
    if work & layout.BANS:
        ban(adjusted + first, bans, first, size)
        tl.debug_barrier()


@triton.jit
def measure(
    x,
    scale,
    weighs,
    looks,
    summary,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Measure the program's block of a row, into its summary; weighs, looks: whether masses, whether peaks
    are wanted."""
    PADDED: tl.constexpr = (VOCAB + 63) // 64 * 64
    GROUP: tl.constexpr = BLOCK // GROUPS
    group = tl.arange(0, GROUPS)
    ids = tl.program_id(0) * BLOCK + group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]
    value = tl.load(x + ids, mask=ids < PADDED, other=-INFINITY)
    value = tl.where((value == value) & (ids < VOCAB), value, -INFINITY)
    peak = tl.max(value, axis=1)
    largest = tl.max(peak, axis=0)
    tl.store(summary.bests, largest)
    tl.store(summary.best_ids, tl.min(tl.min(tl.where(value == largest, ids, 0x7FFFFFFF), axis=1), axis=0))
    if weighs:
        tl.store(summary.masses + group, tl.sum(units_of(weight_of(value, largest, scale)), axis=1))
    if looks:
        tl.store(summary.peaks + group, peak)


@triton.jit
def scan_kernel(  # limits: exempt (kernel: a row's lists and what is noted of its blocks)
    records,
    logits,
    logits_stride,
    adjusted,
    tally,
    bias_ids,
    bias_values,
    bans,
    allowed,
    summary,
    VOCAB: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
):
    """A program a block of a row."""
    row = tl.program_id(1).to(tl.int64)
    record = records + row * layout.ROW_WORDS
    work = load_int(record, layout.WORK)
    if work == 0:
        return
    x = logits + row * logits_stride
    at = (row * 2 + RAW) * BLOCKS + tl.program_id(0)
    if work & layout.LOGPROBS:
        looks = load_int(record, layout.ALTERNATIVES) > 0
        measure(x, LOG2_E, True, looks, summary_from(summary, at), VOCAB=VOCAB, BLOCK=BLOCK)
    at += (DRAWN - RAW) * BLOCKS
    if work & layout.DRAWS:
        if work & layout.ADJUSTS:
            own = adjusted + row * (BLOCKS * BLOCK)
            adjust_block(
                x,
                record,
                work,
                own,
                tally + row * (BLOCKS * BLOCK),
                bias_ids + row * BIAS_LANES,
                bias_values + row * BIAS_LANES,
                bans + row * STOP_LANES,
                allowed + row * (VOCAB // 32 + 1),
                VOCAB=VOCAB,
                BLOCK=BLOCK,
            )
            x = own
        measure(
            x,
            load_float(record, layout.SCALE_F),
            (work & layout.SCALES) != 0,
            (work & layout.FILTERS) != 0,
            summary_from(summary, at),
            VOCAB=VOCAB,
            BLOCK=BLOCK,
        )
