"""The times at which the gateway gives memory back: soon after large bodies, and again a while later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firelane.text.heap import trim_heap

SOON_S, LATER_S = 1.0, 15.0


class Trimmer:
    """The trimmer of one server's memory. Many large bodies are followed by few trims: each is SOON_S or
    LATER_S after a body, whatever comes in between."""

    def __init__(self, trim: Callable[[], None] = trim_heap) -> None:
        self._trim = trim
        self._due: dict[float, asyncio.TimerHandle] = {}

    def large_body(self) -> None:
        """One has been worked on."""
        loop = asyncio.get_running_loop()
        for delay_s in (SOON_S, LATER_S):
            if delay_s not in self._due:
                self._due[delay_s] = loop.call_later(delay_s, self._run, delay_s)

    def close(self) -> None:
        """Trim no more; idempotent."""
        for handle in self._due.values():
            handle.cancel()
        self._due.clear()

    def _run(self, delay_s: float) -> None:
        del self._due[delay_s]
        asyncio.get_running_loop().run_in_executor(None, self._trim)
