"""Drafts from the sequence itself, and from late answers to the same tenant: what followed the last time that
the same few tokens stood there."""

from __future__ import annotations

from collections.abc import Sequence as Several

import numpy as np
from numpy.typing import NDArray

from firelane.contract import NOTHING, GivenBack
from firelane.engine.sequences.sequence import Sequence
from firelane.engine.speculation.ngram_index import LONGEST_MATCH, SEPARATOR, NgramIndex, up_to_separator
from firelane.engine.speculation.proposer import NO_PROPOSAL, Asked, Proposal
from firelane.engine.speculation.recent_outputs import RecentOutputs

INDEXED_AT_ONCE = 4096
"""Tokens of a long prompt that one call takes into the index, so that no step waits for all of it."""
MOST_INDEXED = 1 << 17
"""Tokens of a sequence that the index knows, the first ones, so that its memory is bounded."""


class _Lookup:
    """The index of one sequence, and where its last draft was taken from. Where a draft failed in the middle
    of a place, the place is gone on with behind the token that differed: so a text that is copied with
    changes is found again at once."""

    def __init__(self, sequence: Sequence) -> None:
        self.sequence = sequence
        self._index = NgramIndex()
        self._source = 0
        """The index in the tokens from which the last draft was taken, 0 for none."""
        self._at = 0
        """Known tokens when it was."""
        self._expected = [] if sequence.prediction is None else [*sequence.prediction.tolist(), SEPARATOR]
        self._given = len(self._expected)

    @property
    def output(self) -> list[int]:
        """The output as far as it was seen."""
        return self._index.tokens[self._given + self.sequence.prompt_len :]

    def propose(self, tokens: NDArray[np.int32], most: int, recent: NgramIndex | None) -> Proposal:
        index, known = self._index, self._given + len(tokens)
        self._take_in(tokens)
        if len(index.tokens) < known or most < 1:
            return NO_PROPOSAL
        place, length = index.find()
        if recent is not None and length < LONGEST_MATCH:
            other, longer = recent.find_end_of(index.tokens)
            run = up_to_separator(recent.tokens[other : other + most]) if longer > length else []
            if run:
                return Proposal(run, _confidence(longer))
        return self._from(place or self._next_place(known), max(length, 1), most)

    def _take_in(self, tokens: NDArray[np.int32]) -> None:
        """Index what is not yet, some at a time: the answer that the request predicts, then the text."""
        index, left = self._index, INDEXED_AT_ONCE
        behind = len(index.tokens)
        if behind < self._given:
            index.extend(self._expected[behind : behind + left])
            left -= len(index.tokens) - behind
            behind = len(index.tokens)
        if left and behind < min(self._given + len(tokens), MOST_INDEXED):
            index.extend(tokens[behind - self._given :][:left].tolist())

    def _next_place(self, known: int) -> int:
        """The place behind that of the last draft, as many tokens on as were drawn since; at first the start
        of the answer that the request predicts. 0: there is none."""
        if self._given and not self._at:
            self._source, self._at = 0, known - 1
        return self._source + known - self._at if self._source or self._given else 0

    def _from(self, place: int, length: int, most: int) -> Proposal:
        known = len(self._index.tokens)
        if not 0 < place < known:
            self._source = 0
            return NO_PROPOSAL
        self._source, self._at = place, known
        run = up_to_separator(self._index.tokens[place : place + most])
        if place + len(run) == known:
            run *= -(-most // len(run))  # the text repeats itself: so will what follows
        return Proposal(run[:most], _confidence(length))


class NgramProposer:
    """A Proposer by the sequence's own tokens, by what its request says of the answer, and by answers of
    before to the same tenant and salt."""

    def __init__(self) -> None:
        self._lookups: dict[int, _Lookup] = {}
        self._recent = RecentOutputs()

    def propose(self, asked: Several[Asked]) -> list[Proposal]:
        return [
            self._lookup(one).propose(one.tokens, one.most, self._recent.of(one.sequence)) for one in asked
        ]

    def forget(self, tenant: bytes) -> None:
        self._recent.forget(tenant)
        for slot, lookup in list(self._lookups.items()):
            if lookup.sequence.chain.tenant == tenant:
                del self._lookups[slot]

    def standby(self) -> GivenBack:
        """Texts are kept: they are small."""
        return NOTHING

    def wake(self) -> None:
        """Nothing was given back."""

    def _lookup(self, asked: Asked) -> _Lookup:
        found = self._lookups.get(asked.slot)
        if found is None or found.sequence is not asked.sequence:
            if found is not None:
                self._recent.add(found.sequence, found.output)
            found = self._lookups[asked.slot] = _Lookup(asked.sequence)
        return found


def _confidence(agreement: int) -> float:
    """Text that agreed for long goes on to agree."""
    return 1.0 - 1.0 / (1.0 + 0.5 * agreement)
