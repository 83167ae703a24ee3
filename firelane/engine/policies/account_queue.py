"""The waiting sequences of one account, and their order.

Without priorities and deadlines who came first comes first. With them the lowest priority comes first. Among
equals it is the earliest deadline, and a sequence without one is in line with those that are due PATIENCE_S
after its arrival. Two rules keep others from waiting for ever:

- one that has waited for PATIENCE_S without a deadline gets each second turn before equals with deadlines, so
  that neither kind is held up by a queue of the other one;
- one in STARVED_TURNS turns is of the sequence that came first, whatever its priority, once it has waited for
  STARVED_S. So one that has waited for so long, with `n` older ones before it, gets a slot within
  STARVED_TURNS * (n + 1) admissions of its account, whatever comes meanwhile.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator

from firelane.engine.sequences.sequence import Sequence
from firelane.engine.sequences.urgency import PLAIN

PATIENCE_S, PATIENT_TURNS = 3.0, 2
STARVED_S, STARVED_TURNS = 30.0, 4

Rank = tuple[int, float, int]
"""Priority, time at which it counts as due, and arrival: the least comes first."""
Ranked = list[tuple[Rank, Sequence]]


def rank(sequence: Sequence) -> Rank:
    urgency = sequence.urgency
    due_s = urgency.due_s if urgency.has_deadline else sequence.arrived_s + PATIENCE_S
    return urgency.priority, due_s, sequence.arrival


def by_turn(now_s: float) -> Callable[[Sequence], tuple[float, ...]]:
    """The key that sorts sequences in slots: those that came PATIENCE_S ago, oldest first, then the others by
    rank. So the computation of a prompt is held up by more urgent ones for no longer than that."""

    def key(sequence: Sequence) -> tuple[float, ...]:
        if sequence.arrived_s <= now_s - PATIENCE_S:
            return -math.inf, sequence.arrival
        return rank(sequence)

    return key


class AccountQueue:
    """Waiting sequences. They are ranked from the first one on that has an urgency until none is left."""

    def __init__(self) -> None:
        self._by_id: OrderedDict[int, Sequence] = OrderedDict()
        self._is_ranked = False
        self._due: Ranked = []
        self._others: Ranked = []
        self._turns = 0
        """Admissions so far."""

    def __len__(self) -> int:
        return len(self._by_id)

    def values(self) -> Iterator[Sequence]:
        """Sequences that were preempted, then the others in order of their arrival."""
        return iter(self._by_id.values())

    def push(self, sequence: Sequence, *, first: bool) -> None:
        """Add one. first: before all others, where none has an urgency."""
        if not self._is_ranked and sequence.urgency is not PLAIN:
            self._is_ranked = True
            self._others = sorted((rank(other), other) for other in self.values())
        self._by_id[sequence.id] = sequence
        if first:
            self._by_id.move_to_end(sequence.id, last=False)
        if self._is_ranked:
            insort(self._ranked_with(sequence), (rank(sequence), sequence))

    def remove(self, sequence: Sequence) -> None:
        del self._by_id[sequence.id]
        if self._is_ranked:
            # A rank is of one sequence alone, as arrivals are: sequences are never compared.
            ranked = self._ranked_with(sequence)
            del ranked[bisect_left(ranked, (rank(sequence),))]

    def admitted(self) -> None:
        """One that was removed has got a slot."""
        self._turns += 1

    def in_turn(self, now_s: float) -> Iterator[Sequence]:
        """All in the order in which they get slots. Valid until the queue changes."""
        return self._merged(now_s) if self._is_ranked else self.values()

    def _ranked_with(self, sequence: Sequence) -> Ranked:
        return self._due if sequence.urgency.has_deadline else self._others

    def _merged(self, now_s: float) -> Iterator[Sequence]:
        given: set[int] = set()
        starved = self._starved(now_s - STARVED_S)
        due, others = iter(self._due), iter(self._others)
        first_due, first_other = next(due, None), next(others, None)
        for turn in range(self._turns + 1, self._turns + len(self) + 1):
            while first_due and first_due[1].id in given:
                first_due = next(due, None)
            while first_other and first_other[1].id in given:
                first_other = next(others, None)
            oldest = (
                next((s for s in starved if s.id not in given), None) if turn % STARVED_TURNS == 0 else None
            )
            is_patient = turn % PATIENT_TURNS == 0
            sequence = oldest or _better(first_due, first_other, now_s, is_patient=is_patient)
            given.add(sequence.id)
            yield sequence

    def _starved(self, before_s: float) -> Iterator[Sequence]:
        """Sequences that came before that time; those that were preempted stand before older ones."""
        for sequence in self.values():
            if sequence.arrived_s <= before_s:
                yield sequence
            elif not sequence.preemptions:
                return


def _better(
    due: tuple[Rank, Sequence] | None,
    other: tuple[Rank, Sequence] | None,
    now_s: float,
    *,
    is_patient: bool,
) -> Sequence:
    """One of the first with a deadline and the first without. is_patient: the turn is of one that has waited
    long."""
    if due is None or other is None:
        found = due or other
        assert found is not None, "the queue is empty"
        return found[1]
    (priority, other_due_s, _), sequence = other
    if priority == due[0][0] and other_due_s <= now_s:
        return sequence if is_patient else due[1]
    return min(due, other)[1]
