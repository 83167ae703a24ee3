"""The length of a sequence's next draft, learned from what became of those before."""

from __future__ import annotations

import math

from firelane.request_limits import MOST_DRAFTED

FIRST_LENGTH = 4
MEMORY = 3.0
"""Tokens that count as much as all that was seen before the last draft."""
LONGEST_PAUSE = 64
"""Steps without a draft after many that failed from their first token on."""
CERTAIN = 0.995
DOUBT = 0.3
"""A new sequence begins like one whose drafts have failed, where less of all drafts was accepted lately."""
DOUBTED_FAILURES = 4


class DraftLength:
    """Drafts get longer while they are accepted, shorter where they fail, and rare where nothing of them is
    accepted."""

    __slots__ = ("_failures", "_rate", "longest")

    def __init__(self, rate: float = 1.0) -> None:
        """rate: of drafted tokens of this engine that were accepted lately, where those before them were.
        longest: the longest draft that the next step may have."""
        is_doubted = rate < DOUBT
        self._rate = rate
        self.longest = 1 if is_doubted else FIRST_LENGTH
        self._failures = DOUBTED_FAILURES if is_doubted else 0  # drafts in a row that failed at once

    @property
    def pause(self) -> int:
        """Steps until the next draft."""
        return min((1 << self._failures >> 1) - 1, LONGEST_PAUSE) if self._failures else 0

    def choose(self, confidence: float, row_price: float) -> int:
        """Tokens to draft. confidence: the chance that the first one is accepted, as the proposer sees it.
        row_price: tokens that the engine could have drawn in the time of one more row: each drafted token
        must be more likely than that to be accepted, together with those before it. What the sequence's
        drafts have shown counts as much as the confidence, and alone where it is worse. After failures one
        token is tried all the same."""
        chance = min((confidence + self._rate) / 2, self._rate, CERTAIN)
        if row_price >= 1.0 or chance <= row_price:
            return 1 if self._failures and row_price < 1.0 else 0
        return min(self.longest, int(math.log(row_price) / math.log(chance)))

    def note(self, drafted: int, accepted: int) -> None:
        """A draft of `drafted` tokens was verified; the first `accepted` of them were right."""
        failed = accepted < drafted
        self._rate = (MEMORY * self._rate + accepted) / (MEMORY + accepted + failed)
        self._failures = 0 if accepted else self._failures + 1
        if not failed:
            self.longest = min(MOST_DRAFTED, max(self.longest, 2 * drafted))
        elif not accepted:
            self.longest = max(1, self.longest // 2)
