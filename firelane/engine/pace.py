"""How long steps take, as seen so far: what tells how much work can join one before it is felt."""

from __future__ import annotations

SMOOTHING = 0.1
SIZES = 24


class Pace:
    """Keeps a moving average of the time of steps of 1, 2-3, 4-7, 8-15 ... tokens.

    Up to some number of tokens a step takes hardly longer than the shortest one (it reads all weights), and
    from there on each token adds its share: so the shortest step, and the time for a token in the fullest
    one, tell the size of a step that takes a given time.
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
        """Tokens of a step that takes `factor` times as long as the shortest; infinite while none was
        seen."""
        if not self._fullest:
            return float("inf")
        shortest_s = min(seconds for seconds in self._step_s if seconds)
        return factor * shortest_s / self._token_s[self._fullest]
