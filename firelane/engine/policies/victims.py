"""The choice of the sequence that gives up slot and pages when there are too few, between tenants.

Always the youngest sequence of an account, background work first. Among tenants it is the one that holds most
for its weight. Two rules keep sequences from driving each other out for ever:

- a sequence yields to another tenant only after it has computed twice the tokens that it lost the last time,
  so that what it computes again stays below twice its length;
- a tenant yields to an arriving request only what leaves it no worse off than that request's tenant.

Where nobody yields by these rules, the youngest of all does when a running sequence needs a page: the oldest
running one goes on until its end. Background work has no such protection, but never drives others out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from firelane.engine.sequences.sequence import Sequence, arrival
from firelane.engine.step.draft import PlanDraft


class VictimChoice:
    """Among the sequences that a draft has left in their slots."""

    def __init__(self, draft: PlanDraft) -> None:
        self._draft = draft
        self._running = draft.running()

    def for_growth(self) -> Sequence:
        """The sequence that yields when a running sequence needs pages: it may be that sequence itself."""
        youngest = _youngest(self._running)
        background = [s for s in youngest if s.tenant.background]
        if background:
            return max(background, key=arrival)
        held = _held(self._running, self._draft.held_pages)
        total, weights = sum(held.values()), sum(s.tenant.weight for s in youngest)
        above = [s for s in youngest if held[s.account] * weights > s.tenant.weight * total]
        yielding = [s for s in above if self._may_yield(s)]
        if yielding:
            return max(yielding, key=lambda s: held[s.account] / s.tenant.weight)
        return max(youngest, key=arrival)

    def for_arrival(self, head: Sequence, *, lacks_slot: bool) -> Sequence | None:
        """The sequence that yields to a waiting sequence of another account that lacks a slot, or else
        pages."""
        if head.tenant.background:
            return None
        youngest = _youngest(self._running)
        background = [s for s in youngest if s.tenant.background]
        if background:
            return max(background, key=arrival)
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

    def _may_yield(self, sequence: Sequence) -> bool:
        return self._draft.computed(sequence) >= 2 * sequence.preempted_tokens


def _youngest(running: Iterable[Sequence]) -> list[Sequence]:
    """The youngest running sequence of each account."""
    youngest: dict[int, Sequence] = {}
    for sequence in running:
        known = youngest.get(sequence.account)
        if known is None or sequence.arrival > known.arrival:
            youngest[sequence.account] = sequence
    return list(youngest.values())


def _held(running: Iterable[Sequence], size: Callable[[Sequence], int]) -> dict[int, int]:
    held: dict[int, int] = {}
    for sequence in running:
        if not sequence.tenant.background:
            held[sequence.account] = held.get(sequence.account, 0) + size(sequence)
    return held


def _one(sequence: Sequence) -> int:
    del sequence
    return 1
