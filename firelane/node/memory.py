"""The models whose memory is taken when another model needs it: a pure choice among those that hold some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_COST_S = 0.05
"""To come back: what is less makes no difference."""
STAYS_FOR_COST = 10
"""Times what it takes to come back: a model that has stayed so long costs little in going and coming."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A model that could give memory back. gives_bytes: what its standby gives, ends_bytes: what its end
    gives (standby keeps a process); equal where it knows none, or is in it. idle_s: since its last request;
    resident_s: since it became ready. cost_s: to come back. is_busy: it has requests. is_ready: it serves;
    else it is in standby.
    """

    name: str
    gives_bytes: int
    ends_bytes: int
    priority: int = 0
    idle_s: float = 0.0
    resident_s: float = 0.0
    cost_s: float = LEAST_COST_S
    is_busy: bool = False
    is_pinned: bool = False
    is_ready: bool = True

    @property
    def rank(self) -> tuple[bool, int, float]:
        """The order in which models go: first those that serve (they give most, and come back soonest), the
        least priority, the longest idle for what it costs to come back."""
        return not self.is_ready, self.priority, -self.idle_s / max(self.cost_s, LEAST_COST_S)

    def has_stayed(self, min_residence_s: float) -> bool:
        """Whether it may leave again, so that models do not push each other out in turn."""
        stays_s = STAYS_FOR_COST * max(self.cost_s, LEAST_COST_S)
        return not self.is_ready or self.resident_s >= min(min_residence_s, stays_s)


@dataclass(frozen=True, kw_only=True)
class Eviction:
    """Models that give memory back, by standby; by their end where `ends`."""

    names: tuple[str, ...]
    ends: bool


def eviction(holders: Sequence[Holder], need_bytes: int, min_residence_s: float) -> Eviction | None:
    """The eviction by which `need_bytes` are free then; None where it is not enough now. Never with one
    that has requests, is pinned, or came a moment ago (Holder.has_stayed)."""
    free = sorted((one for one in holders if is_free(one, min_residence_s)), key=lambda one: one.rank)
    for ends in (False, True):
        found = _enough(free, need_bytes, ends=ends)
        if found is not None:
            return Eviction(names=tuple(one.name for one in found), ends=ends)
    return None


def is_free(holder: Holder, min_residence_s: float) -> bool:
    """Whether it may give memory back now."""
    return holder.has_stayed(min_residence_s) and not holder.is_busy and not holder.is_pinned


def yielder(holders: Sequence[Holder], priority: int, min_residence_s: float) -> Holder | None:
    """The busy model that is to let its requests end, and to take no new ones, for one of `priority` that
    finds no idle one: never one that counts for more."""
    able = [
        one
        for one in holders
        if one.is_busy
        and one.is_ready
        and not one.is_pinned
        and one.priority <= priority
        and one.has_stayed(min_residence_s)
    ]
    return min(able, key=lambda one: (one.priority, -one.resident_s), default=None)


def _enough(free: Sequence[Holder], need_bytes: int, *, ends: bool) -> list[Holder] | None:
    """The first of them that give so much together, without those that need not: a later one may have given
    enough for both."""
    gives = {one.name: one.ends_bytes if ends else one.gives_bytes for one in free}
    chosen, found = list[Holder](), 0
    for holder in free:
        if found < need_bytes and gives[holder.name] > 0:
            chosen.append(holder)
            found += gives[holder.name]
    spare = found - need_bytes
    if spare < 0:
        return None
    for holder in list(chosen):
        if gives[holder.name] <= spare:
            spare -= gives[holder.name]
            chosen.remove(holder)
    return chosen
