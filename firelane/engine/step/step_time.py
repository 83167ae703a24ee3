"""A model of the time of a step by its number of tokens, learned from the steps so far."""

from __future__ import annotations

import math
from itertools import pairwise

FALL, RISE = 0.3, 0.05
"""Part of the difference that an average takes over from a faster, or a slower step: what is slow once, was
held up by something else."""
OUTLIER = 4.0
"""A step counts as at most so many times the average."""
SAMPLES = 4
"""Steps of a size until it is known; of these, the fastest counts."""
FRESH_STEPS = 500
"""A size is known for so many steps after its last one."""
SIZES = 24


class StepTimeModel:
    """Moving averages of the time of steps of 1, 2-3, 4-7, 8-15 ... tokens.

    Up to some number of tokens a step takes hardly longer than the shortest one, which reads all weights;
    from there on each token adds its share. Between the sizes seen, time is taken to grow evenly: an upper
    bound, explored from below. A caller that keeps to the answers tries ever better sizes, and never one that
    takes much longer than it asked for.
    """

    def __init__(self) -> None:
        self._tokens = [0.0] * SIZES
        self._step_s = [0.0] * SIZES
        self._samples = [0] * SIZES
        self._noted_at = [0] * SIZES
        self._steps = 0

    def note(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
        size = min(tokens.bit_length(), SIZES - 1)
        average_s, samples = self._step_s[size], self._samples[size]
        if not samples:
            share = 1.0
        elif seconds < average_s:
            share = FALL if samples >= SAMPLES else 1.0
        else:
            share, seconds = RISE, min(seconds, OUTLIER * average_s)
        self._tokens[size] += share * (tokens - self._tokens[size])
        self._step_s[size] += share * (seconds - average_s)
        self._steps += 1
        self._samples[size], self._noted_at[size] = samples + 1, self._steps

    def knows(self, tokens: int) -> bool:
        """Some steps of about so many tokens, or of fewer, were seen, and not too long ago."""
        since = self._steps - FRESH_STEPS
        return any(
            self._samples[size] >= SAMPLES and self._noted_at[size] > since
            for size in range(min(tokens.bit_length() + 1, SIZES))
        )

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

    def has_seen(self, tokens: int) -> bool:
        """A step of about so many tokens was seen."""
        return self._samples[min(tokens.bit_length(), SIZES - 1)] > 0

    def seconds(self, tokens: int) -> float:
        """Seconds of a step of about so many tokens; 0 where no such step was seen."""
        return self._step_s[min(tokens.bit_length(), SIZES - 1)]

    def expected_s(self, tokens: int) -> float:
        """Seconds that a step of `tokens` tokens is likely to take, between the sizes seen and beyond them; 0
        while none was seen."""
        seen = self._seen()
        if not seen:
            return 0.0
        for (fewer, shorter_s), (more, longer_s) in pairwise(seen):
            if tokens <= more:
                part = max(0.0, tokens - fewer) / (more - fewer)
                return shorter_s + part * (longer_s - shorter_s)
        last, seconds = seen[-1]
        return seconds * max(1.0, tokens / last)

    def share_of_one_more(self, tokens: int) -> float:
        """The time that one more token adds to a step of `tokens` tokens, as part of the step's time: the
        least by which any longer step grows with its tokens, as steps that were held up look too long. Beyond
        the longest step seen, time is taken to grow with the tokens."""
        seen = self._seen()
        shorter = [size for size in seen if size[0] <= tokens]
        if not shorter:
            return 0.0
        fewer, shorter_s = shorter[-1]
        slopes = [(longer_s - shorter_s) / (more - fewer) for more, longer_s in seen if more > tokens]
        return min(slopes, default=shorter_s / tokens) / shorter_s

    def _seen(self) -> list[tuple[float, float]]:
        """(tokens, seconds) of the sizes seen, ascending; no step takes longer than one of more tokens."""
        seen: list[tuple[float, float]] = []
        shortest_s = math.inf
        for tokens, seconds in zip(reversed(self._tokens), reversed(self._step_s), strict=True):
            if tokens:
                shortest_s = min(shortest_s, seconds)
                seen.append((tokens, shortest_s))
        return seen[::-1]
