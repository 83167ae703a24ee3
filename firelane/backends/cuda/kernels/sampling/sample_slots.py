"""The wishes of each row: read from the slots once, over the bus, for the sampling kernels behind.

Pinned host memory is slow to reach, so each list is read as a whole and only by rows that use it; what they
need of it is left in device memory.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane import contract
from firelane.backends.cuda.device import pinned_state
from firelane.backends.cuda.kernels.sampling import sample_layout as layout
from firelane.backends.cuda.kernels.sampling.sample_numbers import LOG2_E, uniform_at
from firelane.backends.cuda.kernels.sums import power_of_two
from firelane.backends.cuda.step import tables

LOGIT_ROWS = tl.constexpr(tables.LOGIT_ROWS)
ROW_COLUMNS = tl.constexpr(tables.ROW_COLUMNS)
ROW_SLOT = tl.constexpr(tables.ROW_SLOT)
ROW_POSITION = tl.constexpr(tables.ROW_POSITION)
ROW_KIND = tl.constexpr(tables.ROW_KIND)
ROW_MASK = tl.constexpr(tables.ROW_MASK)
SAMPLE = tl.constexpr(contract.SAMPLE)
SCORE = tl.constexpr(contract.SCORE)
EMBED = tl.constexpr(contract.EMBED)
MAX_LOGPROBS = tl.constexpr(contract.MAX_LOGPROBS)
MAX_BIAS = tl.constexpr(contract.MAX_BIAS)
BIAS_LANES = tl.constexpr(layout.BIAS_ROOM)
STOP_LANES = tl.constexpr(contract.MAX_STOP_IDS)
PARAM_WORDS = tl.constexpr(pinned_state.PARAM_WORDS)
PARAM_LANES = tl.constexpr(power_of_two(pinned_state.PARAM_WORDS))
_OFFSETS = pinned_state.PARAM_OFFSETS
_TEMPERATURE = tl.constexpr(_OFFSETS["temperature"])
_TOP_P = tl.constexpr(_OFFSETS["top_p"])
_MIN_P = tl.constexpr(_OFFSETS["min_p"])
_REPETITION = tl.constexpr(_OFFSETS["repetition_penalty"])
_PRESENCE = tl.constexpr(_OFFSETS["presence_penalty"])
_FREQUENCY = tl.constexpr(_OFFSETS["frequency_penalty"])
_TOP_K = tl.constexpr(_OFFSETS["top_k"])
_LOGPROBS = tl.constexpr(_OFFSETS["logprobs"])
_SEED = tl.constexpr(_OFFSETS["seed"])
_PROMPT_LEN = tl.constexpr(_OFFSETS["prompt_len"])
_STOP_FROM = tl.constexpr(_OFFSETS["stop_from"])
_NUM_STOP_IDS = tl.constexpr(_OFFSETS["num_stop_ids"])
_NUM_REPORTED = tl.constexpr(_OFFSETS["num_reported"])
_NUM_BIAS = tl.constexpr(_OFFSETS["num_bias"])
_MASKED = tl.constexpr(_OFFSETS["masked"])
_LARGEST_FLOAT = tl.constexpr(3.4028234663852886e38)
_EQUALS = tl.constexpr(4)  # entries of a bias that all others are compared with at once
_MASK_CHUNK = tl.constexpr(128)


@triton.jit
def word(words, index: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, PARAM_LANES) == index, words, 0), axis=0)


@triton.jit
def number(words, index: tl.constexpr):
    return word(words, index).to(tl.float32, bitcast=True)


@triton.jit
def put(record, index: tl.constexpr, value):
    if value.dtype == tl.float32:
        value = value.to(tl.int32, bitcast=True)
    tl.store(record + index, value)


@triton.jit
def count_tokens(  # limits: exempt (kernel: a slot's tokens)
    tokens,
    tally,
    begin,
    prompt_len,
    end,
    VOCAB: tl.constexpr,
    ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """tally[t]: how often the output holds token t, and PROMPT where the prompt does, of positions
    [begin, end)."""
    lane = tl.arange(0, CHUNK)
    for start in range(0, ROW, CHUNK):
        tl.store(tally + start + lane, tl.zeros([CHUNK], tl.int32), mask=start + lane < ROW)
    tl.debug_barrier()
    for start in range(begin, end, CHUNK):
        position = start + lane
        token = tl.load(tokens + position, mask=position < end, other=-1)
        known = (token >= 0) & (token < VOCAB)
        in_prompt = position < prompt_len
        tl.atomic_add(tally + token, 1, mask=known & (position >= prompt_len), sem="relaxed")
        tl.atomic_or(tally + token, layout.PROMPT, mask=known & in_prompt, sem="relaxed")


@triton.jit
def read_bias(slot_ids, slot_values, ids, values, count, VOCAB: tl.constexpr):
    """ids, values: [BIAS_LANES], each token of the vocabulary once, with the sum of its values; -1 else."""
    lane = tl.arange(0, BIAS_LANES)
    own = tl.load(slot_ids + lane, mask=lane < count, other=-1)
    own = tl.where((own >= 0) & (own < VOCAB), own, -1)
    tl.store(ids + lane, own)
    tl.store(values + lane, tl.load(slot_values + lane, mask=lane < count, other=0.0))
    tl.debug_barrier()
    total, before = tl.zeros([BIAS_LANES], tl.float32), tl.zeros([BIAS_LANES], tl.int32)
    for start in range(0, count, _EQUALS):
        other = start + tl.arange(0, _EQUALS)
        same = own[:, None] == tl.load(ids + other)[None, :]
        total += tl.sum(tl.where(same, tl.load(values + other)[None, :], 0.0), axis=1)
        before += tl.sum((same & (other[None, :] < lane[:, None])).to(tl.int32), axis=1)
    tl.debug_barrier()
    tl.store(ids + lane, tl.where(before == 0, own, -1))
    tl.store(values + lane, total)


@triton.jit
def read_stops(slot_ids, count, VOCAB: tl.constexpr):
    """[STOP_LANES], each token of the vocabulary once; -1 else."""
    lane = tl.arange(0, STOP_LANES)
    ids = tl.load(slot_ids + lane, mask=lane < count, other=-1)
    ids = tl.where((ids >= 0) & (ids < VOCAB), ids, -1)
    same = (ids[:, None] == ids[None, :]) & (lane[None, :] < lane[:, None])
    return tl.where(tl.sum(same.to(tl.int32), axis=1) == 0, ids, -1)


@triton.jit
def read_mask(slot_mask, allowed, stops, VOCAB: tl.constexpr, CHUNK: tl.constexpr):
    """Copies the mask, no bits past the vocabulary. Returns the lowest token that it allows (0: none), and
    whether it allows any but `stops` (distinct)."""
    WORDS: tl.constexpr = VOCAB // 32 + 1
    first, others = tl.full([], VOCAB, tl.int32), tl.full([], 0, tl.int32)
    valid = (tl.full([], 1, tl.int32) << (VOCAB % 32)) - 1
    for start in range(0, WORDS, CHUNK):
        at = start + tl.arange(0, CHUNK)
        bits = tl.load(slot_mask + at, mask=at < WORDS, other=0)
        tl.store(allowed + at, tl.where(at == WORDS - 1, bits & valid, bits), mask=at < WORDS)
    tl.debug_barrier()
    for start in range(0, WORDS, _MASK_CHUNK):
        at = start + tl.arange(0, _MASK_CHUNK)
        bits = tl.load(allowed + at, mask=at < WORDS, other=0)
        lowest = (bits & -bits).to(tl.uint32, bitcast=True).to(tl.float32)  # a power of two: exact
        token = at * 32 + (lowest.to(tl.int32, bitcast=True) >> 23) - 127
        first = tl.minimum(first, tl.min(tl.where(bits != 0, token, VOCAB), axis=0))
        here = (stops[None, :] >= 0) & (stops[None, :] >> 5 == at[:, None])
        banned = tl.sum(tl.where(here, 1 << (stops[None, :] & 31), 0), axis=1)
        others = tl.maximum(others, tl.max((bits & ~banned != 0).to(tl.int32), axis=0))
    return tl.where(first < VOCAB, first, 0), others != 0


@triton.jit
def store_filters(record, words, position, VOCAB: tl.constexpr):
    """Temperature, filters and random number. Returns SCALES and FILTERS, where they apply."""
    temperature, top_k = number(words, _TEMPERATURE), word(words, _TOP_K)
    top_p, min_p = number(words, _TOP_P), number(words, _MIN_P)
    top_k = tl.where((top_k > 0) & (top_k < VOCAB), top_k, 0)
    put(record, layout.SCALE_F, tl.minimum(tl.div_rn(1.0, temperature) * LOG2_E, _LARGEST_FLOAT))
    put(record, layout.TOP_P_F, top_p)
    put(record, layout.MIN_P_F, min_p)
    put(record, layout.TOP_K, top_k)
    put(record, layout.UNIFORM, uniform_at(word(words, _SEED), word(words, _SEED + 1), position))
    filters = tl.where((top_k > 0) | (top_p < 1) | (min_p > 0), layout.FILTERS, 0)
    return tl.where(temperature > 0, layout.SCALES | filters, 0)


@triton.jit
def store_penalties(  # limits: exempt (kernel: a slot's tokens)
    record,
    words,
    tokens,
    tally,
    position,
    VOCAB: tl.constexpr,
    ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Returns PENALIZES where there are any; then the tokens before `position` are counted."""
    repetition, prompt_len = number(words, _REPETITION), word(words, _PROMPT_LEN)
    presence, frequency = number(words, _PRESENCE), number(words, _FREQUENCY)
    put(record, layout.REPETITION_F, repetition)
    put(record, layout.PRESENCE_F, presence)
    put(record, layout.FREQUENCY_F, frequency)
    penalizes = (repetition != 1) | (presence != 0) | (frequency != 0)
    if penalizes:
        begin = tl.where(repetition != 1, 0, tl.maximum(prompt_len, 0))
        count_tokens(tokens, tally, begin, prompt_len, position, VOCAB=VOCAB, ROW=ROW, CHUNK=CHUNK)
    return tl.where(penalizes, layout.PENALIZES, 0)


@triton.jit
def store_choice(  # limits: exempt (kernel: a slot's lists and where they go)
    record,
    words,
    position,
    stop_ids,
    mask,
    bans,
    allowed,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Banned stop tokens and mask. Returns BANS and MASKS, where they apply."""
    count = tl.where(position < word(words, _STOP_FROM), word(words, _NUM_STOP_IDS), 0)
    is_masked = word(words, _MASKED) != 0
    stops = tl.full([STOP_LANES], -1, tl.int32)
    if count > 0:
        stops = read_stops(stop_ids, count, VOCAB=VOCAB)
        tl.store(bans + tl.arange(0, STOP_LANES), stops)
    last_resort, bans_some = tl.full([], 0, tl.int32), count > 0
    if is_masked:
        last_resort, others = read_mask(mask, allowed, stops, VOCAB=VOCAB, CHUNK=CHUNK)
        bans_some = bans_some & others
    put(record, layout.LAST_RESORT, last_resort)
    return tl.where(bans_some, layout.BANS, 0) | tl.where(is_masked, layout.MASKS, 0)


@triton.jit
def read_slots_kernel(  # limits: exempt (kernel: the slots' state and where it goes)
    counts,
    rows,
    tokens,
    tokens_stride,
    slot_params,
    bias_ids,
    bias_values,
    stop_ids,
    masks,
    records,
    tally,
    own_bias_ids,
    own_bias_values,
    bans,
    allowed,
    VOCAB: tl.constexpr,
    ROW: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """A program a row. ROW: tokens that a row of `tally` has room for."""
    row = tl.program_id(0).to(tl.int64)
    record = records + row * layout.ROW_WORDS
    if row >= tl.load(counts + LOGIT_ROWS):
        tl.store(record + layout.WORK, 0)
        return
    WORDS: tl.constexpr = VOCAB // 32 + 1
    slot = tl.load(rows + row * ROW_COLUMNS + ROW_SLOT).to(tl.int64)
    mask = tl.load(rows + row * ROW_COLUMNS + ROW_MASK).to(tl.int64)
    position = tl.load(rows + row * ROW_COLUMNS + ROW_POSITION) + 1
    kind = tl.load(rows + row * ROW_COLUMNS + ROW_KIND)
    if kind == EMBED:
        tl.store(record + layout.WORK, 0)
        return
    lane = tl.arange(0, PARAM_LANES)
    words = tl.load(slot_params + slot * PARAM_WORDS + lane, mask=lane < PARAM_WORDS, other=0)
    alternatives = tl.minimum(word(words, _LOGPROBS), MAX_LOGPROBS)
    work = tl.where((kind == SCORE) | (alternatives >= 0), layout.LOGPROBS, 0)
    put(record, layout.ALTERNATIVES, alternatives)
    put(record, layout.REPORTED, tl.minimum(word(words, _NUM_REPORTED), MAX_LOGPROBS))
    tokens += slot * tokens_stride
    if kind == SCORE:
        put(record, layout.SCORED, tl.load(tokens + position))
    if kind == SAMPLE:
        work |= layout.DRAWS | store_filters(record, words, position, VOCAB=VOCAB)
        adjusts = store_penalties(
            record, words, tokens, tally + row * ROW, position, VOCAB=VOCAB, ROW=ROW, CHUNK=CHUNK
        )
        adjusts |= store_choice(
            record,
            words,
            position,
            stop_ids + slot * STOP_LANES,
            masks + mask * WORDS,
            bans + row * STOP_LANES,
            allowed + row * WORDS,
            VOCAB=VOCAB,
            CHUNK=CHUNK,
        )
        num_bias = tl.minimum(word(words, _NUM_BIAS), MAX_BIAS)
        if num_bias > 0:
            source, to = slot * MAX_BIAS, row * BIAS_LANES
            read_bias(
                bias_ids + source,
                bias_values + source,
                own_bias_ids + to,
                own_bias_values + to,
                num_bias,
                VOCAB=VOCAB,
            )
            adjusts |= layout.BIASES
        work |= tl.where(adjusts != 0, adjusts | layout.ADJUSTS, 0)
    put(record, layout.WORK, work)
