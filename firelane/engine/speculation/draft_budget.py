"""The time that drafts may lose: a small part of that of all steps, whatever is asked of the engine."""

from __future__ import annotations

EARNED = 0.004
"""Part of each step's time that failing drafts may take."""
FIRST, MOST = 0.5, 8.0
"""Steps that an engine begins with, and most of those won before that later drafts may lose."""
HOST_S = 60e-6
"""Time that a step with drafts takes longer on the host: nothing is planned while it runs."""


class DraftBudget:
    """Drafts pay from it what they have lost, and add what they have won. Its unit is the time of a step."""

    def __init__(self) -> None:
        self._left = FIRST

    @property
    def is_spent(self) -> bool:
        return self._left < 0

    def earn(self) -> None:
        """A step with decodes is planned."""
        self._left = min(MOST, self._left + EARNED)

    def spend(self, drafting_s: float, plain_s: float) -> None:
        """A proposer has taken so many seconds; plain_s as in `note`."""
        if plain_s:
            self._left -= drafting_s / plain_s

    def note(self, won: float, step_s: float, plain_s: float) -> None:
        """A step with drafts was verified. won: the steps that its accepted tokens would have taken; step_s,
        plain_s: seconds that steps of its size, and without drafts, take on average, 0 where not known."""
        if plain_s:
            longer = max(step_s / plain_s - 1.0, 0.0)
            self._left = min(MOST, self._left + won - longer - HOST_S / plain_s)
