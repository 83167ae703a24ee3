"""The few tokens of a row that matter: lists of candidates, and where to cut them.

A list holds token ids in increasing order, in device memory that one program alone touches; a barrier stands
before what another of its threads wrote is read. No list is sorted: a threshold is searched by cutting a
range of keys into PIVOTS parts, over ever fewer candidates.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

import triton
import triton.language as tl

from firelane.backends.cuda.kernels import sample_layout
from firelane.backends.cuda.kernels.sample_numbers import (
    INFINITY,
    LOWEST_KEY,
    key_of,
    units_of,
    value_of,
    weight_of,
)

PIVOTS = tl.constexpr(sample_layout.PIVOTS)
HIGHEST_KEY = tl.constexpr(2**31 - 1)
_BOUND_BITS = tl.constexpr(20)


@triton.jit
def bound_of(peaks, k):
    """A key that at least k of the groups' peaks reach, and not many more: the k-th largest, its lower bits
    cleared; the least above NaN's where there are fewer than k."""
    ranks = key_of(peaks).to(tl.int64) - LOWEST_KEY
    bound = tl.full([], 0, tl.int64)
    for i in range(_BOUND_BITS):
        higher = bound | (tl.full([], 1, tl.int64) << (31 - i))
        bound = tl.where(tl.sum((ranks >= higher).to(tl.int32), axis=0) >= k, higher, bound)
    return tl.maximum(bound + LOWEST_KEY, LOWEST_KEY + 1).to(tl.int32)


@triton.jit
def is_candidate(x, bound, floor, largest, scale):
    return (key_of(x) >= bound) & (weight_of(x, largest, scale) >= floor)


@triton.jit
def collect(  # limits: exempt (kernel: a row and its test)
    x,
    peaks,
    groups,
    out,
    bound,
    floor,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """out: the tokens whose key is no less than `bound` and whose weight is no less than `floor`. Returns
    how many. peaks: of all groups, NaN beyond; groups: scratch, room for as many ids."""
    live = is_candidate(peaks, bound, floor, largest, scale).to(tl.int32)
    lane = tl.arange(0, peaks.shape[0])
    tl.debug_barrier()
    tl.store(groups + tl.cumsum(live, axis=0) - 1, lane, mask=live != 0)
    tl.debug_barrier()
    members, n = tl.sum(live, axis=0) * GROUP, tl.full([], 0, tl.int32)
    for start in range(0, members, CHUNK):
        member = start + tl.arange(0, CHUNK)
        group = tl.load(groups + member // GROUP, mask=member < members, other=0)
        ids = group * GROUP + member % GROUP
        value = tl.load(x + ids, mask=(member < members) & (ids < VOCAB), other=float("nan"))
        chosen = is_candidate(value, bound, floor, largest, scale).to(tl.int32)
        tl.store(out + n + tl.cumsum(chosen, axis=0) - 1, ids, mask=chosen != 0)
        n += tl.sum(chosen, axis=0)
    return n


@triton.jit
def narrow(x, source, n, out, low, high, CHUNK: tl.constexpr):
    """out (may be `source`): those of source[:n] whose key is within [low, high]. Returns how many, and
    their least and greatest key."""
    kept = tl.full([], 0, tl.int32)
    least, greatest = tl.full([], HIGHEST_KEY, tl.int32), tl.full([], LOWEST_KEY, tl.int32)
    tl.debug_barrier()
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        ids = tl.load(source + at, mask=at < n, other=0)
        key = key_of(tl.load(x + ids, mask=at < n, other=float("nan")))
        chosen = (key >= low) & (key <= high)
        least = tl.minimum(least, tl.min(tl.where(chosen, key, HIGHEST_KEY), axis=0))
        greatest = tl.maximum(greatest, tl.max(tl.where(chosen, key, LOWEST_KEY), axis=0))
        place = kept + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        kept += tl.sum(chosen.to(tl.int32), axis=0)
        tl.debug_barrier()  # all of this chunk has been read
        tl.store(out + place, ids, mask=chosen)
    tl.debug_barrier()
    return kept, least, greatest


@triton.jit
def measure_of(value, by_mass, largest, scale):
    """What a candidate counts for: its mass, or one."""
    return tl.where(by_mass, units_of(weight_of(value, largest, scale)), 1)


@triton.jit
def split(  # limits: exempt (kernel: a list and its measure)
    x,
    ids,
    n,
    least,
    greatest,
    above,
    target,
    by_mass,
    largest,
    scale,
    CHUNK: tl.constexpr,
):
    """The part of [least, greatest] in which the measure summed from the greatest key down, on top of
    `above`, reaches `target`; the lowest part where it does not. Returns its ends, and `above` grown by the
    measure of what lies over it."""
    part = tl.arange(0, PIVOTS)
    first, last = least.to(tl.int64), greatest.to(tl.int64)
    step = (last - first) // PIVOTS + 1
    pivots = tl.minimum(first + part * step, last).to(tl.int32)
    sums = tl.zeros([CHUNK, PIVOTS], tl.int64)
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        value = tl.load(x + tl.load(ids + at, mask=at < n, other=0), mask=at < n, other=float("nan"))
        measure = measure_of(value, by_mass, largest, scale)
        sums += tl.where(key_of(value)[:, None] >= pivots[None, :], measure[:, None], 0)
    reached = above + tl.sum(sums, axis=0)
    chosen = tl.maximum(tl.sum((reached >= target).to(tl.int32), axis=0) - 1, 0)
    is_last = chosen == PIVOTS - 1
    above = tl.where(is_last, above, tl.sum(tl.where(part == chosen + 1, reached, 0), axis=0))
    low = tl.sum(tl.where(part == chosen, pivots, 0), axis=0)
    high = tl.where(is_last, greatest, tl.sum(tl.where(part == chosen + 1, pivots, 0), axis=0) - 1)
    return low, high, above


@triton.jit
def select(x, ids, n, spare, target, by_mass, largest, scale, CHUNK: tl.constexpr):
    """The cut that keeps the fewest of ids[:n] (one at least), the largest first and lower ids first on a
    tie, whose measures sum to `target` > 0; all where the sum falls short. Returns a key and a number: kept
    are those above the key, and so many of those equal to it. spare: room for n ids."""
    above = tl.full([], 0, tl.int64)
    ties, least, greatest = narrow(  # pyright: ignore[reportGeneralTypeIssues]
        x, ids, n, spare, LOWEST_KEY + 1, HIGHEST_KEY, CHUNK=CHUNK
    )
    while least < greatest:
        low, high, above = split(
            x, spare, ties, least, greatest, above, target, by_mass, largest, scale, CHUNK=CHUNK
        )
        ties, least, greatest = narrow(x, spare, ties, spare, low, high, CHUNK=CHUNK)
    each = tl.maximum(measure_of(value_of(least), by_mass, largest, scale), 1)
    wanted = (target - above + each - 1) // each
    return least, tl.minimum(tl.maximum(wanted, 1), ties.to(tl.int64)).to(tl.int32)


@triton.jit
def keep(x, ids, n, key, ties, largest, scale, CHUNK: tl.constexpr):
    """Drops those of ids[:n] that a cut does not keep. Returns how many are left, and their mass."""
    kept, tied = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    mass = tl.zeros([CHUNK], tl.int64)
    tl.debug_barrier()
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        token = tl.load(ids + at, mask=at < n, other=0)
        value = tl.load(x + token, mask=at < n, other=float("nan"))
        own = key_of(value)
        equal = (own == key).to(tl.int32)
        chosen = (own > key) | ((equal != 0) & (tied + tl.cumsum(equal, axis=0) <= ties))
        tied += tl.sum(equal, axis=0)
        mass += tl.where(chosen, units_of(weight_of(value, largest, scale)), 0)
        place = kept + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        kept += tl.sum(chosen.to(tl.int32), axis=0)
        tl.debug_barrier()  # all of this chunk has been read
        tl.store(ids + place, token, mask=chosen)
    tl.debug_barrier()
    return kept, tl.sum(mass, axis=0)


@triton.jit
def first_beyond(x, ids, n, target, largest, scale, CHUNK: tl.constexpr):
    """The first of ids[:n] at which the mass summed so far exceeds `target`, which all of it does."""
    reached, token = tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        own = tl.load(ids + at, mask=at < n, other=0)
        value = tl.load(x + own, mask=at < n, other=-INFINITY)
        mass = units_of(weight_of(value, largest, scale))
        total = tl.sum(mass, axis=0)
        if (reached <= target) & (reached + total > target):
            before = reached + tl.cumsum(mass, axis=0) <= target
            index = start + tl.sum(before.to(tl.int32), axis=0)
            token = tl.load(ids + index)
        reached += total
    return token
