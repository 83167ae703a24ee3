"""How long steps take, as seen so far: what tells how much work can join one before it is felt."""

from __future__ import annotations

import math
from itertools import pairwise

FALL, RISE = 0.3, 0.05
"""Part of the difference that an average takes over from a faster, or a slower step: what is slow once, was
held up by something else."""
SAMPLES = 4
"""Steps of a size until it is known."""
SIZES = 24


class Pace:
    """Keeps moving averages of the time of steps of 1, 2-3, 4-7, 8-15 ... tokens.

    Up to some number of tokens a step takes hardly longer than the shortest one, which reads all weights;
    from there on each token adds its share. Between the sizes seen, time grows evenly; who keeps to what is
    answered tries ever better sizes, and never one that takes much longer than was asked for.
    """

    def __init__(self) -> None:
        self._tokens = [0.0] * SIZES
        self._step_s = [0.0] * SIZES
        self._samples = [0] * SIZES

    def note(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
        size = min(tokens.bit_length(), SIZES - 1)
        share = FALL if seconds < self._step_s[size] else RISE
        share = share if self._samples[size] else 1.0
        self._samples[size] += 1
        self._tokens[size] += share * (tokens - self._tokens[size])
        self._step_s[size] += share * (seconds - self._step_s[size])

    def knows(self, tokens: int) -> bool:
        """Some steps of about so many tokens, or of fewer, were seen."""
        return max(self._samples[: tokens.bit_length() + 1]) >= SAMPLES

    def tokens_within(self, factor: float) -> float:
        """Tokens of a step that takes `factor` times as long as the shortest; infinite while none was
        seen."""
        seen = self._seen()
        if not seen:
            return math.inf
        limit_s = factor * seen[0][1]
        for (fewer, shorter_s), (more, longer_s) in pairwise(seen):
            if longer_s > limit_s:
                return fewer + (more - fewer) * (limit_s - shorter_s) / (longer_s - shorter_s)
        tokens, seconds = seen[-1]
        return tokens * limit_s / seconds

    def _seen(self) -> list[tuple[float, float]]:
        """(tokens, seconds) of the sizes seen, ascending; no step takes longer than one of more tokens."""
        seen: list[tuple[float, float]] = []
        shortest_s = math.inf
        for tokens, seconds in zip(reversed(self._tokens), reversed(self._step_s), strict=True):
            if tokens:
                shortest_s = min(shortest_s, seconds)
                seen.append((tokens, shortest_s))
        return seen[::-1]
