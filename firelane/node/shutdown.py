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
    async def retire(self) -> object:
        """Drain for as long as it takes, when a successor answers new connections."""
        ...


class Shutdown:
    """The shutdown of one server, in one event loop."""

    def __init__(self, drain_s: float = DRAIN_S) -> None:
        self._begins = asyncio.Event()
        self._at_once = asyncio.Event()
        self._succeeded = False
        self._drain_s = drain_s

    def listen(self) -> None:
        """From now on SIGINT and SIGTERM are heard here."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self.ask)

    @property
    def has_begun(self) -> bool:
        return self._begins.is_set()

    def begin(self) -> None:
        self._begins.set()

    def succeed(self) -> None:
        """Another server has the port: nothing need end before its time."""
        self._succeeded = True
        self.begin()

    def ask(self) -> None:
        """Ask for the shutdown, as a signal does."""
        (self._at_once if self.has_begun else self._begins).set()

    async def wait(self) -> None:
        """Until it begins."""
        await self._begins.wait()

    async def begun_or(self, event: asyncio.Event) -> None:
        """Until it begins, or the event comes."""
        waits = [asyncio.ensure_future(one.wait()) for one in (self._begins, event)]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def drain(self, server: Drainable) -> None:
        """Returns when nothing is in flight, after drain_s where nobody follows, or at once when asked
        again."""
        if self._succeeded:
            log.info("succeeded requests=%d: they go on, then this server ends", server.in_flight)
        elif server.in_flight:
            log.info("draining requests=%d timeout_s=%g", server.in_flight, self._drain_s)
        draining = asyncio.ensure_future(server.retire() if self._succeeded else server.drain(self._drain_s))
        at_once = asyncio.ensure_future(self._at_once.wait())
        await asyncio.wait((draining, at_once), return_when=asyncio.FIRST_COMPLETED)
        for task in (draining, at_once):
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
