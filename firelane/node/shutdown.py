"""The end of a server by signals: the first one drains it, the next one ends it at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from typing import Protocol

log = logging.getLogger(__name__)
DRAIN_S = 10.0
"""Seconds for which requests in flight may go on after the first SIGINT or SIGTERM."""


class Drainable(Protocol):
    @property
    def in_flight(self) -> int: ...
    async def drain(self, timeout_s: float) -> object: ...


class Shutdown:
    """Of one server, in one event loop."""

    def __init__(self) -> None:
        self._begins = asyncio.Event()
        self._at_once = asyncio.Event()

    def listen(self) -> None:
        """From now on SIGINT and SIGTERM are heard here."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.ask)

    @property
    def has_begun(self) -> bool:
        return self._begins.is_set()

    def begin(self) -> None:
        self._begins.set()

    def ask(self) -> None:
        """As a signal does."""
        (self._at_once if self.has_begun else self._begins).set()

    async def wait(self) -> None:
        """Until it begins."""
        await self._begins.wait()

    async def drain(self, server: Drainable) -> None:
        """Returns when nothing is in flight, after DRAIN_S, or at once when asked again."""
        if server.in_flight:
            log.info("draining requests=%d timeout_s=%g", server.in_flight, DRAIN_S)
        draining = asyncio.ensure_future(server.drain(DRAIN_S))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, at_once):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
