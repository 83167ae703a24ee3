"""How long steps take, as seen so far: what tells how much work can join one before it is felt."""

from __future__ import annotations

SMOOTHING = 0.1
SIZES = 24
SHORT = 8
"""Steps of fewer tokens count as short."""


class Pace:
    """Keeps a moving average of the time of steps of 1, 2-3, 4-7, 8-15 ... tokens.

    Up to some number of tokens a step takes hardly longer than the shortest one (it reads all weights), and
    from there on each token adds its share: so the shortest step, and the time for a token in the fullest
    ones, tell the size of a step that takes a given time.
    """

    def __init__(self) -> None:
        self._step_s = [0.0] * SIZES
        self._token_s = [0.0] * SIZES
        self._fullest = 0

    def note(self, tokens: int, seconds: float) -> None:
        """A step of `tokens` tokens took `seconds`."""
        size = min(tokens.bit_length(), SIZES - 1)
        if self._step_s[size] == 0.0:
            self._step_s[size], self._token_s[size] = seconds, seconds / tokens
        else:
            self._step_s[size] += SMOOTHING * (seconds - self._step_s[size])
            self._token_s[size] += SMOOTHING * (seconds / tokens - self._token_s[size])
        self._fullest = max(self._fullest, size)

    def tokens_within(self, factor: float) -> float:
        """Tokens of a step that takes `factor` times as long as the shortest. While no short one was seen it
        is one: there is no other way to know."""
        if not any(self._step_s[: SHORT.bit_length()]):
            return SHORT - 1
        shortest_s = min(seconds for seconds in self._step_s if seconds)
        return factor * shortest_s / self._token_s[self._fullest]
