"""Rates: so much a minute, at most a minute's worth at once."""

from __future__ import annotations

from collections.abc import MutableSequence


class TokenBucket:
    """Holds at most `per_minute` and is filled evenly. What was used beyond a promise may overdraw it.

    Times are seconds of one clock, given by the caller. (Turner, "New directions in communications", 1986.)
    What it keeps are two figures of `cell`, from `at` on, 0 at first: how much is used and not filled again,
    and when that was so. Whoever shares them, shares the bucket.
    """

    __slots__ = ("_at", "_cell", "per_minute")

    def __init__(
        self, per_minute: int, now_s: float, cell: MutableSequence[float] | None = None, at: int = 0
    ) -> None:
        self.per_minute = per_minute
        self._cell: MutableSequence[float] = [0.0, now_s] if cell is None else cell
        self._at = at

    def level(self, now_s: float) -> float:
        """The amount that it holds; below 0 when overdrawn."""
        cell, at = self._cell, self._at
        used = max(0.0, cell[at] - (now_s - cell[at + 1]) * self.per_minute / 60)
        cell[at], cell[at + 1] = used, now_s
        return self.per_minute - used

    def wait_s(self, amount: float, now_s: float) -> float:
        """Seconds until it holds `amount` (of at most `per_minute`); 0 when it does now."""
        return max(0.0, (amount - self.level(now_s)) * 60 / self.per_minute)

    def add(self, amount: float, now_s: float) -> None:
        """Put back `amount`, or take it where negative."""
        self._cell[self._at] = max(0.0, self.per_minute - self.level(now_s) - amount)

    def resize(self, per_minute: int, now_s: float) -> None:
        """Another rate from now on; what has been used stays used."""
        self.level(now_s)
        self.per_minute = per_minute
