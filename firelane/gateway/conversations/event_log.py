"""Numbered events of answers that are made in the background, for clients that come back for them."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque

from firelane.gateway.http.exchange import Exchange

MAX_BYTES = 64 << 20
EVENT_BYTES = 64
"""Bytes that an event takes besides its text, about."""


class EventLog:
    """Events of one answer; their places are their sequence numbers. first: of those that are kept.
    ended: nothing follows.
    """

    def __init__(self) -> None:
        self.first = 0
        self.ended = False
        self.size_bytes = 0
        self._events: deque[bytes] = deque()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self.first + len(self._events)

    def append(self, data: bytes) -> None:
        """Whole events, one or several; comments are left out. Nothing once it has ended."""
        if self.ended:
            return
        for event in data.split(b"\n\n"):
            if event and not event.startswith(b":"):
                self._events.append(event + b"\n\n")
                self.size_bytes += len(event) + EVENT_BYTES
        self._wake()

    def end(self) -> None:
        self.ended = True
        self._wake()

    def drop_first(self) -> None:
        """Forget the oldest event."""
        self.size_bytes -= len(self._events.popleft()) - len(b"\n\n") + EVENT_BYTES
        self.first += 1

    async def follow(self, exchange: Exchange, number: int) -> None:
        """Stream the events from this number on, and those to come, until the end. A client that falls behind
        what is kept is cut off.
        """
        exchange.start_stream()
        exchange.on_gone = self._wake
        while not exchange.gone:
            if number < self.first:
                exchange.abort()
                return
            pending = b"".join(itertools.islice(self._events, number - self.first, None))
            if pending:
                number = self.next
                exchange.send(pending)
                await exchange.drained()
            elif self.ended:
                exchange.end()
            else:
                await self._change()

    async def _change(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class EventLogs:
    """The logs of a server, by answer, of at most max_bytes: the oldest that have ended go first, then the
    oldest events of whichever grows.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._logs: dict[str, EventLog] = {}
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def begin(self, answer_id: str) -> EventLog:
        log = self._logs[answer_id] = EventLog()
        return log

    def get(self, answer_id: str) -> EventLog | None:
        return self._logs.get(answer_id)

    def append(self, log: EventLog, data: bytes) -> None:
        before = log.size_bytes
        log.append(data)
        self._bytes += log.size_bytes - before
        if self._bytes > self._max_bytes:
            self._make_room(log)

    def forget(self, answer_id: str) -> None:
        """Nothing where there is none. Whoever follows it gets its end."""
        log = self._logs.pop(answer_id, None)
        if log is not None:
            self._bytes -= log.size_bytes
            log.end()

    def _make_room(self, growing: EventLog) -> None:
        ended = [key for key, log in self._logs.items() if log.ended]
        for key in ended:
            if self._bytes <= self._max_bytes:
                return
            self.forget(key)
        while self._bytes > self._max_bytes and growing.first < growing.next:
            before = growing.size_bytes
            growing.drop_first()
            self._bytes -= before - growing.size_bytes
