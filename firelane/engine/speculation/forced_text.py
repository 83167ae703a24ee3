"""Drafts of text that a grammar forces: certain as text, and nearly so as tokens."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from firelane.engine.grammar.draft_masks import DraftMasks
from firelane.engine.sequences.table import SequenceTable

FIRST_RATE = 0.9
MOST_RATE = 0.98
MEMORY = 30.0
"""Drafted tokens of all sequences that count as much as all before them."""


class ForcedText:
    """The runs of tokens that spell what grammars force. Drafts from elsewhere that fail do not keep these
    from being made, as they say nothing of them."""

    def __init__(self, table: SequenceTable, masks: DraftMasks) -> None:
        self._table, self._masks = table, masks
        self._rate = FIRST_RATE
        self._step, self._slots = -1, frozenset[int]()

    def runs(
        self, step: int, slots: NDArray[np.int64], room: NDArray[np.int32], price: float
    ) -> dict[int, list[int]]:
        """By slot, tokens to draft for this step. slots: int64, of sequences with a grammar; room: int32, the
        most tokens of each; price: tokens that could be drawn in the time of one more row."""
        longest = int(math.log(price) / math.log(self._rate))
        found: dict[int, list[int]] = {}
        for slot, fits in zip(slots.tolist(), room.tolist(), strict=True):
            sequence = self._table.at(slot)
            run = self._masks.forced(sequence)[: max(0, min(fits, longest, sequence.most_drafted))]
            if run:
                found[slot] = run
        self._step, self._slots = step, frozenset(found)
        return found

    def has(self, step: int, slot: int) -> bool:
        """The draft of this slot in this step is forced text. No two steps in flight have such drafts."""
        return step == self._step and slot in self._slots

    def note(self, drafted: int, accepted: int) -> None:
        """A draft of forced text was verified; the first `accepted` of its tokens were right."""
        rate = (MEMORY * self._rate + accepted) / (MEMORY + accepted + (accepted < drafted))
        self._rate = min(rate, MOST_RATE)
