"""Whose memory is taken when another model needs it: a pure choice among those that hold some."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

LEAST_COST_S = 0.05
"""To come back: what is less makes no difference."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """A model that could give memory back. gives_bytes: what its standby, or its end, gives. idle_s: since
    its last request; resident_s: since it became ready. cost_s: to come back. is_busy: it has requests.
    is_ready: it serves; else it is in standby."""

    name: str
    gives_bytes: int
    priority: int = 0
    idle_s: float = 0.0
    resident_s: float = 0.0
    cost_s: float = LEAST_COST_S
    is_busy: bool = False
    is_pinned: bool = False
    is_ready: bool = True

    @property
    def rank(self) -> tuple[bool, int, float]:
        """Who goes first: those that serve (they give most, and come back soonest), the least priority, the
        longest idle for what it costs to come back."""
        return not self.is_ready, self.priority, -self.idle_s / max(self.cost_s, LEAST_COST_S)


def victims(holders: Sequence[Holder], need_bytes: int, min_residence_s: float) -> list[Holder] | None:
    """Those that are to give memory back, so that `need_bytes` are free then; None where it is not enough
    now. Never one that has requests, is pinned, or came less than `min_residence_s` ago."""
    chosen, found = list[Holder](), 0
    for holder in sorted((one for one in holders if is_free(one, min_residence_s)), key=lambda one: one.rank):
        if found >= need_bytes:
            break
        chosen.append(holder)
        found += holder.gives_bytes
    if found < need_bytes:
        return None
    return _without_needless(chosen, found - need_bytes)


def is_free(holder: Holder, min_residence_s: float) -> bool:
    """Whether it may give memory back now."""
    rested = not holder.is_ready or holder.resident_s >= min_residence_s
    return rested and not holder.is_busy and not holder.is_pinned and holder.gives_bytes > 0


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
        and one.resident_s >= min_residence_s
    ]
    return min(able, key=lambda one: (one.priority, -one.resident_s), default=None)


def _without_needless(chosen: list[Holder], spare_bytes: int) -> list[Holder]:
    """The last one may have given so much that earlier ones can stay."""
    kept: list[Holder] = []
    for holder in chosen:
        if holder.gives_bytes <= spare_bytes:
            spare_bytes -= holder.gives_bytes
        else:
            kept.append(holder)
    return kept
