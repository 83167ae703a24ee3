"""The numbered events of one stream, for clients that come back for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from firelane.gateway.http.exchange import EVENT_STREAM, Exchange

EVENT_BYTES = 64
"""Bytes that an event takes besides its text, about."""
PIECE_BYTES = 64 << 10
"""Bytes that are written to a reader at once, about: the next piece comes when it has taken most of them."""
FORGOTTEN_EVENTS = 1024
"""Places of forgotten events that a log may still have."""
_END = b"\n\n"


def _nobody_asks(readers: int) -> None:
    del readers


class EventLog:
    """Events of one answer; their places are their sequence numbers. first: of those that are kept.
    ended: nothing follows. size_bytes: about what the events take. numbered: each event begins with a line
    `id: NUMBER`, which a browser sends back when it connects again.
    """

    def __init__(self, *, numbered: bool = False) -> None:
        self.first = 0
        self.ended = False
        self.size_bytes = 0
        self.on_readers: Callable[[int], None] = _nobody_asks
        """It is told how many readers there are, when one comes or goes before the end."""
        self._numbered = numbered
        self._events: list[bytes] = []
        self._forgotten = 0
        self._readers: set[Exchange] = set()
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self.first + len(self._events) - self._forgotten

    @property
    def readers(self) -> int:
        return len(self._readers)

    def append(self, data: bytes) -> None:
        """Whole events, one or several. Comments have no number: they go to those who read just now. Nothing
        is added once it has ended.
        """
        if self.ended:
            return
        for event in data.split(_END):
            if event.startswith(b":"):
                self._comment(event + _END)
            elif event:
                self._add(event)
        self._wake()

    def _add(self, event: bytes) -> None:
        kept = b"id: %d\n%b\n\n" % (self.next, event) if self._numbered else event + _END
        self._events.append(kept)
        self.size_bytes += len(kept) + EVENT_BYTES

    def _comment(self, comment: bytes) -> None:
        for reader in self._readers:
            reader.send(comment)

    def end(self) -> None:
        """Nothing follows."""
        self.ended = True
        self.on_readers = _nobody_asks
        self._wake()

    def drop_first(self) -> None:
        """Forget the oldest event."""
        self.size_bytes -= len(self._events[self._forgotten]) + EVENT_BYTES
        self._events[self._forgotten] = b""
        self._forgotten += 1
        self.first += 1
        if self._forgotten >= FORGOTTEN_EVENTS and 2 * self._forgotten > len(self._events):
            del self._events[: self._forgotten]
            self._forgotten = 0

    def give_up(self) -> None:
        """End it, and keep no more than who reads near its end still has to get: others are cut off."""
        while self.size_bytes > PIECE_BYTES:
            self.drop_first()
        self.end()

    async def follow(self, exchange: Exchange, number: int) -> None:
        """Stream the events from this number on, and those to come, until the end. A client that falls behind
        what is kept is cut off. HEAD is answered without events.
        """
        if exchange.request.method == b"HEAD":
            exchange.respond(200, b"", content_type=EVENT_STREAM)
            return
        if not exchange.started:
            exchange.start_stream()
        exchange.on_gone = self._wake
        self._readers.add(exchange)
        self.on_readers(len(self._readers))
        try:
            await self._send_all(exchange, number)
        finally:
            self._readers.discard(exchange)
            self.on_readers(len(self._readers))

    async def _send_all(self, exchange: Exchange, number: int) -> None:
        while not exchange.gone:
            if number < self.first:
                exchange.abort()
                return
            piece = self._piece(number)
            if piece:
                number += len(piece)
                exchange.send(b"".join(piece))
                await exchange.drained()
            elif self.ended:
                exchange.end()
            else:
                await self._change()

    def _piece(self, number: int) -> list[bytes]:
        """Events from this number on, as many as are written at once."""
        begin = end = number - self.first + self._forgotten
        left = PIECE_BYTES
        while end < len(self._events) and left > 0:
            left -= len(self._events[end])
            end += 1
        return self._events[begin:end]

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
