"""The places where the last tokens of a text stood before: prompt lookup decoding (Saxena 2023).

Of these places the one that agrees with the most tokens before it is taken.
"""

from __future__ import annotations

from collections.abc import Iterable

GRAM = 3
"""Tokens that must agree."""
CANDIDATES = 8
"""Latest places that are compared."""
LONGEST_MATCH = 32
"""Tokens before a place that are compared."""
TOKEN_BITS = 21
SEPARATOR = (1 << TOKEN_BITS) - 1
"""Stands behind texts that do not go on in what follows, and is no token of any vocabulary."""


class NgramIndex:
    """The places of each run of GRAM tokens in a list of tokens that grows."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._latest: dict[int, int] = {}
        """By run of tokens, the index behind its latest place."""
        self._before: list[int] = []
        """By index behind a place, that of the place before of the same run; 0: none."""

    def extend(self, new: Iterable[int]) -> None:
        """Take in tokens that follow those known."""
        for token in new:
            self._append(token)

    def _append(self, token: int) -> None:
        tokens = self.tokens
        tokens.append(token)
        known = len(tokens)
        if known < GRAM:
            self._before.append(0)
            return
        key = _key(tokens)
        self._before.append(self._latest.get(key, 0))
        self._latest[key] = known

    def find(self) -> tuple[int, int]:
        """The index behind the earlier place that agrees best with the end of the tokens, and with how many
        tokens it agrees; (0, 0) where there is none."""
        return self._best(self._before[-1] if self._before else 0, self.tokens)

    def find_end_of(self, others: list[int]) -> tuple[int, int]:
        """The same for the end of other tokens."""
        return self._best(self._latest.get(_key(others), 0) if len(others) >= GRAM else 0, others)

    def _best(self, place: int, others: list[int]) -> tuple[int, int]:
        best, longest = 0, 0
        for _ in range(CANDIDATES):
            if not place or longest >= LONGEST_MATCH:
                break
            length = self._agreement(place, others)
            if length > longest:
                best, longest = place, length
            place = self._before[place - 1]
        return best, longest

    def _agreement(self, place: int, others: list[int]) -> int:
        tokens, known, length = self.tokens, len(others), GRAM
        most = min(LONGEST_MATCH, place, known)
        while length < most and tokens[place - 1 - length] == others[known - 1 - length]:
            length += 1
        return length


def _key(tokens: list[int]) -> int:
    key = 0
    for token in tokens[-GRAM:]:
        key = key << TOKEN_BITS | token
    return key


def up_to_separator(run: list[int]) -> list[int]:
    return run[: run.index(SEPARATOR)] if SEPARATOR in run else run
