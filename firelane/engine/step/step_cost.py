"""The cost of an engine's steps in two numbers, for whoever chooses between engines."""

from __future__ import annotations

SHORT_TOKENS, LONG_TOKENS = 8, 64
"""Steps of no more tokens than the one read all weights for a few sequences; those of as many as the other
compute prompts."""
NEWEST = 0.1
"""Share of the newest step in a mean."""
OUTLIER = 4.0
"""A step counts as at most so many times the mean."""


class StepCost:
    """Running means of the steps so far, 0 while there was none. step_ms: of a short step; token_ms: of a
    token of a long one. Written by the engine's loop, read by the heartbeat."""

    def __init__(self) -> None:
        self.step_ms = self.token_ms = 0.0

    def note(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
        if tokens <= SHORT_TOKENS:
            self.step_ms = _mean(self.step_ms, 1000 * seconds)
        elif tokens >= LONG_TOKENS:
            self.token_ms = _mean(self.token_ms, 1000 * seconds / tokens)


def _mean(before: float, newest: float) -> float:
    if not before:
        return newest
    return before + NEWEST * (min(newest, OUTLIER * before) - before)
