"""Long work on the event loop, cut so that other requests have their turns between its parts."""

from __future__ import annotations

import asyncio

SEQUENCE_COST = 1024
"""To make and submit a sequence, in tokens that are looked at: some 25 us."""
TURN_COST = 1 << 17
"""Some 3 ms."""


class TimeSlice:
    """The work of one request. What costs little stays in one turn of the loop."""

    def __init__(self) -> None:
        self._left = TURN_COST

    async def take(self, cost: int) -> None:
        """Account for what was done; lets others in where it was much."""
        self._left -= cost
        if self._left < 0:
            self._left = TURN_COST
            await asyncio.sleep(0)
