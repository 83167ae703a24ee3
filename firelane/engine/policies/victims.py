"""The choice of the sequence that gives up slot and pages when there are too few, between tenants.

Always the youngest sequence of an account, of those of the worst priority, background work first. Among
tenants it is the one that holds most for its weight. Three rules keep sequences from driving each other out
for ever:

- a sequence yields to another tenant only after it has computed twice the tokens that it lost the last time,
  so that what it computes again stays below twice its length;
- a tenant yields to an arriving request only what leaves it no worse off than that request's tenant;
- a sequence yields to one of its own account with a better priority no more than MOST_FOR_PRIORITY times;
  from then on its priority counts as the best one when a sequence is chosen.

Where nobody yields by these rules, the youngest of all does when a running sequence needs a page: the oldest
running one goes on until its end. Background work has no such protection, but never drives others out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from firelane.engine.sequences.sequence import Sequence, arrival
from firelane.engine.step.draft import PlanDraft

MOST_FOR_PRIORITY = 2


def firmness(sequence: Sequence) -> tuple[float, int]:
    """The greatest of some sequences yields first: the worst priority, then the youngest."""
    kept = sequence.preemptions >= MOST_FOR_PRIORITY
    return -math.inf if kept else sequence.urgency.priority, sequence.arrival


class VictimChoice:
    """Among the sequences that a draft has left in their slots."""

    def __init__(self, draft: PlanDraft, *, has_urgent: bool = False) -> None:
        """has_urgent: some sequences have a priority; else the youngest yields first."""
        self._draft = draft
        self._running = draft.running()
        self._order: Callable[[Sequence], Any] = firmness if has_urgent else arrival

    def for_growth(self) -> Sequence:
        """The sequence that yields when a running sequence needs pages: it may be that sequence itself."""
        youngest = self._youngest()
        background = [s for s in youngest if s.tenant.background]
        if background:
            return max(background, key=self._order)
        held = _held(self._running, self._draft.held_pages)
        total, weights = sum(held.values()), sum(s.tenant.weight for s in youngest)
        above = [s for s in youngest if held[s.account] * weights > s.tenant.weight * total]
        yielding = [s for s in above if self._may_yield(s)]
        if yielding:
            return max(yielding, key=lambda s: held[s.account] / s.tenant.weight)
        return max(youngest, key=self._order)

    def for_arrival(self, head: Sequence, *, lacks_slot: bool) -> Sequence | None:
        """The sequence that yields to a waiting sequence of another account that lacks a slot, or else
        pages."""
        if head.tenant.background:
            return None
        youngest = self._youngest()
        background = [s for s in youngest if s.tenant.background]
        if background:
            return max(background, key=self._order)
        size = _one if lacks_slot else self._draft.held_pages
        held = _held(self._running, size)
        need = 1 if lacks_slot else self._draft.num_pages_to_admit(head)
        level = (held.get(head.account, 0) + need) / head.tenant.weight
        yielding = [
            s
            for s in youngest
            if s.account != head.account
            and (held[s.account] - size(s)) / s.tenant.weight >= level
            and self._may_yield(s)
        ]
        return max(yielding, key=lambda s: held[s.account] / s.tenant.weight, default=None)

    def for_priority(self, head: Sequence) -> Sequence | None:
        """The sequence that yields to a waiting one of the same account with a better priority."""
        priority = head.urgency.priority
        able = [
            s
            for s in self._running
            if s.account == head.account
            and s.urgency.priority > priority
            and s.preemptions < MOST_FOR_PRIORITY
            and self._may_yield(s)
        ]
        return max(able, key=self._order, default=None)

    def _youngest(self) -> list[Sequence]:
        """The running sequence of each account that yields first."""
        first: dict[int, Sequence] = {}
        for sequence in self._running:
            known = first.get(sequence.account)
            if known is None or self._order(sequence) > self._order(known):
                first[sequence.account] = sequence
        return list(first.values())

    def _may_yield(self, sequence: Sequence) -> bool:
        return self._draft.computed(sequence) >= 2 * sequence.preempted_tokens


def _held(running: Iterable[Sequence], size: Callable[[Sequence], int]) -> dict[int, int]:
    held: dict[int, int] = {}
    for sequence in running:
        if not sequence.tenant.background:
            held[sequence.account] = held.get(sequence.account, 0) + size(sequence)
    return held


def _one(sequence: Sequence) -> int:
    del sequence
    return 1
