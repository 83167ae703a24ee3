"""Spare recurrent states: how sequences whose layers keep state take back a draft.

A step leaves the state before a sequence's draft in its live state, and the state behind the draft in a spare
one. Where the whole draft was right, the next step goes on from the spare one. Else it goes on from the live
state, and computes anew the drafted tokens that were right: their rows come before the row of the token that
is drawn next, and draw nothing.

Life of a spare state:

    free -- submitted --> held, being written -- committed, all right --> held, read by the next step
     ^                              |                                                |
     +------- committed, release ---+----- the next step, unless it writes it again -+
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NO_SPARE = -1
I32 = NDArray[np.int32]


class DecodeStates(NamedTuple):
    """States that the decodes of a step begin from, in their order. begins: int32 [decodes], the state;
    behind: int32 [decodes], known tokens before the last one that are not in that state yet."""

    begins: I32
    behind: I32


class SpareStates:
    """The one owner of the spare states, and of how far live states are behind. Arrays by slot."""

    def __init__(self, slots: int, count: int = 0, first: int = 0) -> None:
        """count: spare states, of which number `first` among all states of the executor is the first; none
        where the program keeps no recurrent state, or nothing is drafted."""
        self.count = count
        self._free = list(range(first + count - 1, first - 1, -1))
        self._held = np.full(slots, NO_SPARE, np.int32)
        self._behind = np.zeros(slots, np.int32)
        self._drafted = np.zeros(slots, np.int32)
        """Drafted tokens of the step in flight."""

    def of(self, slots: NDArray[np.int64]) -> DecodeStates | None:
        """States that decodes of these slots begin from, none of which is in flight with a draft; None: all
        from their live ones."""
        if len(self._free) == self.count and not self._behind.any():
            return None
        held = self._held[slots]
        begins = np.where(held == NO_SPARE, slots, held).astype(np.int32)
        return DecodeStates(begins, self._behind[slots])

    def behind(self, slot: int) -> int:
        """Known tokens of the slot that a later step computes anew."""
        return int(self._behind[slot])

    def num_behind(self, slots: NDArray[np.int64]) -> int:
        """The same of all these slots."""
        return int(self._behind[slots].sum()) if self.count else 0

    def num_others(self, slots: NDArray[np.int64]) -> int:
        """The most tokens of slots other than these that later steps may have to compute anew."""
        return int(self._behind.sum() + self._drafted.sum()) - self.num_behind(slots)

    def choose(self, slots: NDArray[np.int64], wanted: NDArray[np.bool_]) -> I32:
        """int32 [slots]: a spare state for each of these decodes that is wanted to have a draft, its own or a
        free one; NO_SPARE for the others, and where there are too few."""
        found = np.where(wanted, self._held[slots], NO_SPARE).astype(np.int32)
        without = np.flatnonzero(wanted & (found == NO_SPARE))[: len(self._free)]
        found[without] = self._free[::-1][: len(without)]
        return found

    def submitted(self, slots: NDArray[np.int64], spares: I32 | None, counts: I32 | None) -> None:
        """A step with decodes of these slots is submitted. spares: as `choose` has them; counts: drafted
        tokens of each; None: none has a draft."""
        if not self.count:
            return
        self._behind[slots] = 0
        if spares is None or counts is None:
            self._release_all(slots[self._held[slots] != NO_SPARE])
            return
        writes = spares != NO_SPARE
        self._release_all(slots[~writes & (self._held[slots] != NO_SPARE)])
        taken = spares[writes & (self._held[slots] == NO_SPARE)].tolist()
        self._free = [spare for spare in self._free if spare not in taken]
        self._held[slots[writes]] = spares[writes]
        self._drafted[slots] = counts

    def committed(self, slots: NDArray[np.int64], counts: I32, won: I32) -> I32:
        """The drafts of these decodes were verified. counts: drafted tokens of each; won: tokens that it has
        got. Returns by how many tokens the state of each has advanced that its next step goes on from, int32
        [decodes]."""
        if not self.count:
            return won
        is_wrong = won <= counts
        partly = is_wrong & (self._held[slots] != NO_SPARE)
        self._drafted[slots] = 0
        self._release_all(slots[partly])
        self._behind[slots[partly]] = won[partly] - 1
        return np.where(is_wrong, 1, won).astype(np.int32)

    def release(self, slot: int) -> None:
        """Its sequence runs no more."""
        self._behind[slot] = self._drafted[slot] = 0
        if self._held[slot] != NO_SPARE:
            self._release_all(np.array([slot]))

    def _release_all(self, slots: NDArray[np.int64]) -> None:
        self._free += self._held[slots].tolist()
        self._held[slots] = NO_SPARE

    def check_integrity(self, idle: list[int]) -> None:
        """Raise AssertionError unless each spare state is free or held once, and none by an `idle` slot."""
        held = self._held[self._held != NO_SPARE].tolist()
        assert len({*held, *self._free}) == len(held) + len(self._free) == self.count, "a spare state is lost"
        assert (self._held[idle] == NO_SPARE).all(), "a slot that does not run holds a spare state"
        assert not self._behind[idle].any(), "a slot that does not run is behind"
        assert not self._behind[self._held != NO_SPARE].any(), "a spare state is behind"
