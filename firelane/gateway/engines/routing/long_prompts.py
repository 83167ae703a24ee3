"""Long prompts among others: which are long at present, and how many engines they are kept to."""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import floor

SHARE = 0.01
"""The share of requests that count as long, by the tokens that they have to compute, the longest first."""
WINDOW, LOOK = 2000, 100
"""Requests that are looked at, each LOOK requests."""
LEAST_WORK = 0.1
"""Share of the work that long prompts have to be, else there are none: prompts are much alike."""
FEWEST_ENGINES = 3


class LongPrompts:
    """The longest hundredth of recent prompts. Kept to some engines they wait for each other, and nobody
    waits for them. least_tokens: from which on a prompt is long."""

    def __init__(self) -> None:
        self.least_tokens = float("inf")
        self._work_share = 0.0
        self._recent: deque[int] = deque(maxlen=WINDOW)
        self._number = 0

    def engines(self, number: int) -> int:
        """Number of so many engines for long prompts; 0 where there are none, or too few engines."""
        if self._work_share < LEAST_WORK or number < FEWEST_ENGINES:
            return 0
        return max(1, floor(self._work_share * number))

    def note(self, tokens: int) -> None:
        """A request that has to compute so many tokens."""
        self._recent.append(tokens)
        self._number += 1
        if self._number % LOOK == 0:
            self._look()

    def _look(self) -> None:
        sizes = sorted(self._recent, reverse=True)
        number = max(1, int(SHARE * len(sizes)))
        self.least_tokens = sizes[number - 1]
        self._work_share = sum(islice(sizes, number)) / (sum(sizes) or 1)
