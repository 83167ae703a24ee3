"""The few tokens of a row that matter: lists of candidates, and where to cut them.

A list holds token ids in increasing order, and another their logits, in device memory that one program alone
touches; a barrier stands before what another of its threads wrote is read. No list is sorted: a threshold is
searched by cutting a range of keys into PIVOTS parts, over ever fewer candidates.
"""

# pyright: reportMissingParameterType=false, reportUnknownParameterType=false
# A kernel's parameters take no annotations.

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl

from firelane.backends.cuda.kernels.sampling import sample_layout
from firelane.backends.cuda.kernels.sampling.sample_numbers import (
    LOWEST_KEY,
    UNIT_BITS,
    key_of,
    units_of,
    value_of,
    weight_of,
)

PIVOTS = tl.constexpr(sample_layout.PIVOTS)
HIGHEST_KEY = tl.constexpr(2**31 - 1)
_BOUND_BITS = tl.constexpr(20)


class CandidateLists(NamedTuple):
    """Lists of a row; groups: room for as many ids of groups; logits: of the ids."""

    groups: Any
    ids: Any
    logits: Any


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
def needless_weight(peaks, masses, left_out, largest, scale, GROUP: tl.constexpr):
    """A power of two: all tokens of less weight have together no more than `left_out` of the mass. peaks,
    masses: of all groups."""
    own = units_of(weight_of(peaks, largest, scale))
    others = tl.maximum(masses - own, 0)
    low, high = tl.full([], 0, tl.int32), tl.full([], UNIT_BITS, tl.int32)
    for _ in range(6):  # 0 .. UNIT_BITS
        middle = (low + high) // 2
        least = tl.full([], 1, tl.int64) << (UNIT_BITS - middle)
        below = tl.where(own < least, masses, tl.minimum(others, least * (GROUP - 1)))
        enough = tl.sum(below, axis=0) <= left_out
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, tl.minimum(middle + 1, high))
    return ((127 - high) << 23).to(tl.float32, bitcast=True)  # 2^-high


@triton.jit
def collect(
    x,
    peaks,
    lists,
    bound,
    floor,
    largest,
    scale,
    VOCAB: tl.constexpr,
    GROUP: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """List the tokens whose key is no less than `bound` and whose weight is no less than `floor`. Returns how
    many, and their least and greatest key. peaks: of all groups, NaN beyond."""
    live = is_candidate(peaks, bound, floor, largest, scale).to(tl.int32)
    lane = tl.arange(0, peaks.shape[0])
    tl.debug_barrier()
    tl.store(lists.groups + tl.cumsum(live, axis=0) - 1, lane, mask=live != 0)
    tl.debug_barrier()
    members, n = tl.sum(live, axis=0) * GROUP, tl.full([], 0, tl.int32)
    least, greatest = tl.full([CHUNK], HIGHEST_KEY, tl.int32), tl.full([CHUNK], LOWEST_KEY, tl.int32)
    for start in range(0, members, CHUNK):
        member = start + tl.arange(0, CHUNK)
        group = tl.load(lists.groups + member // GROUP, mask=member < members, other=0)
        token = group * GROUP + member % GROUP
        value = tl.load(x + token, mask=(member < members) & (token < VOCAB), other=float("nan"))
        chosen = is_candidate(value, bound, floor, largest, scale)
        place = n + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(lists.ids + place, token, mask=chosen)
        tl.store(lists.logits + place, value, mask=chosen)
        n += tl.sum(chosen.to(tl.int32), axis=0)
        least = tl.where(chosen, tl.minimum(least, key_of(value)), least)
        greatest = tl.where(chosen, tl.maximum(greatest, key_of(value)), greatest)
    return n, tl.min(least, axis=0), tl.max(greatest, axis=0)


@triton.jit
def narrow(values, n, low, high, CHUNK: tl.constexpr):
    """Drops those of values[:n] whose key is not within [low, high]. Returns how many are left, and their
    least and greatest key."""
    kept = tl.full([], 0, tl.int32)
    least, greatest = tl.full([CHUNK], HIGHEST_KEY, tl.int32), tl.full([CHUNK], LOWEST_KEY, tl.int32)
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        value = tl.load(values + at, mask=at < n, other=float("nan"))
        key = key_of(value)
        chosen = (key >= low) & (key <= high)
        place = kept + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        kept += tl.sum(chosen.to(tl.int32), axis=0)
        tl.debug_barrier()  # all of this chunk has been read
        tl.store(values + place, value, mask=chosen)
        least = tl.where(chosen, tl.minimum(least, key), least)
        greatest = tl.where(chosen, tl.maximum(greatest, key), greatest)
    return kept, tl.min(least, axis=0), tl.max(greatest, axis=0)


@triton.jit
def measure_of(value, by_mass, largest, scale):
    """The measure of a candidate: its mass, or one."""
    return tl.where(by_mass, units_of(weight_of(value, largest, scale)), 1)


@triton.jit
def split(
    values,
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
        value = tl.load(values + at, mask=at < n, other=float("nan"))
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
def select(
    values,
    n,
    least,
    greatest,
    target,
    by_mass,
    largest,
    scale,
    CHUNK: tl.constexpr,
):
    """The cut that keeps the fewest of a list (one at least), the largest first and lower ids first on a tie,
    whose measures sum to `target` > 0; all where the sum falls short. Returns a key and a number: kept are
    those above the key, and so many of those equal to it; and the sum of their measures. values[:n], with
    keys from `least` to `greatest`: lost."""
    SPLIT_CHUNK: tl.constexpr = CHUNK // 2  # `split` keeps PIVOTS sums for each of a chunk
    above = tl.full([], 0, tl.int64)
    tl.debug_barrier()
    while least < greatest:
        low, high, above = split(  # pyright: ignore[reportGeneralTypeIssues]
            values, n, least, greatest, above, target, by_mass, largest, scale, CHUNK=SPLIT_CHUNK
        )
        n, least, greatest = narrow(values, n, low, high, CHUNK=CHUNK)
        tl.debug_barrier()
    each = tl.maximum(measure_of(value_of(least), by_mass, largest, scale), 1)
    wanted = (target - above + each - 1) // each
    ties = tl.minimum(tl.maximum(wanted, 1), n.to(tl.int64))
    return least, ties.to(tl.int32), above + ties * each


@triton.jit
def is_kept(own, key, ties, tied):
    """Which of a chunk, of keys `own`, a cut keeps; tied: how many before the chunk are equal to its key.
    Returns that number for the next chunk, too."""
    equal = (own == key).to(tl.int32)
    kept = (own > key) | ((equal != 0) & (tied + tl.cumsum(equal, axis=0) <= ties))
    return kept, tied + tl.sum(equal, axis=0)


@triton.jit
def keep(
    x,
    lists,
    n,
    key,
    ties,
    largest,
    scale,
    CHUNK: tl.constexpr,
):
    """Drops those of ids[:n] that a cut does not keep, and writes the logits of the others anew. Returns how
    many are left, their mass, and their least and greatest key."""
    kept, tied = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32)
    least, greatest = tl.full([CHUNK], HIGHEST_KEY, tl.int32), tl.full([CHUNK], LOWEST_KEY, tl.int32)
    mass = tl.zeros([CHUNK], tl.int64)
    tl.debug_barrier()
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        token = tl.load(lists.ids + at, mask=at < n, other=0)
        value = tl.load(x + token, mask=at < n, other=float("nan"))
        own = key_of(value)
        chosen, tied = is_kept(own, key, ties, tied)
        place = kept + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        kept += tl.sum(chosen.to(tl.int32), axis=0)
        tl.debug_barrier()  # all of this chunk has been read
        tl.store(lists.ids + place, token, mask=chosen)
        tl.store(lists.logits + place, value, mask=chosen)
        mass += tl.where(chosen, units_of(weight_of(value, largest, scale)), 0)
        least = tl.where(chosen, tl.minimum(least, own), least)
        greatest = tl.where(chosen, tl.maximum(greatest, own), greatest)
    tl.debug_barrier()
    return kept, tl.sum(mass, axis=0), tl.min(least, axis=0), tl.max(greatest, axis=0)


@triton.jit
def first_beyond(
    x,
    ids,
    n,
    key,
    ties,
    target,
    largest,
    scale,
    CHUNK: tl.constexpr,
):
    """The first of ids[:n] at which the mass of those that a cut keeps, summed so far, exceeds `target`; all
    of it does."""
    reached, tied = tl.full([], 0, tl.int64), tl.full([], 0, tl.int32)
    token = tl.full([], 0, tl.int32)
    for start in range(0, n, CHUNK):
        at = start + tl.arange(0, CHUNK)
        value = tl.load(x + tl.load(ids + at, mask=at < n, other=0), mask=at < n, other=float("nan"))
        chosen, tied = is_kept(key_of(value), key, ties, tied)  # pyright: ignore[reportGeneralTypeIssues]
        mass = tl.where(chosen, units_of(weight_of(value, largest, scale)), 0)
        total = tl.sum(mass, axis=0)
        if (reached <= target) & (reached + total > target):
            before = reached + tl.cumsum(mass, axis=0) <= target
            token = tl.load(ids + start + tl.sum(before.to(tl.int32), axis=0))
        reached += total
    return token
