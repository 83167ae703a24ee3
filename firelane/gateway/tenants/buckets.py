"""Rates: so much a minute, at most a minute's worth at once."""

from __future__ import annotations


class TokenBucket:
    """Holds at most `per_minute` and is filled evenly. What was used beyond a promise may overdraw it.

    Times are seconds of one clock, given by the caller. (Turner, "New directions in communications", 1986.)
    """

    __slots__ = ("_at_s", "_level", "per_minute")

    def __init__(self, per_minute: int, now_s: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at_s = now_s

    def level(self, now_s: float) -> float:
        """The amount that it holds; below 0 when overdrawn."""
        filled = self._level + (now_s - self._at_s) * self.per_minute / 60
        self._level, self._at_s = min(filled, float(self.per_minute)), now_s
        return self._level

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until it holds `amount` (of at most `per_minute`); 0 when it does now."""
        return max(0.0, (amount - self.level(now_s)) * 60 / self.per_minute)

    def add(self, amount: float, now_s: float) -> None:
        """Put back `amount`, or take it where negative."""
        self._level = min(self.level(now_s) + amount, float(self.per_minute))

    def resize(self, per_minute: int, now_s: float) -> None:
        """Another rate from now on; what has been used stays used."""
        used = self.per_minute - self.level(now_s)
        self.per_minute = per_minute
        self._level = per_minute - used
