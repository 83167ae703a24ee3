"""The bytes that a client has not read yet of its answers, and whether it goes on reading."""

from __future__ import annotations

import asyncio
import socket

from firelane.gateway.config import HttpLimits
from firelane.gateway.http.http_exchange import HttpExchange


class Outflow:
    """The outgoing side of one connection. stalled: more than HttpLimits.buffer_bytes wait, and nothing
    further is to be answered until the client has read most of them.

    A client is stuck when it has read nothing for HttpLimits.stall_s, however long all of the rest may take;
    or when a stream grows beyond HttpLimits.max_buffer_bytes faster than it reads. What a stream writes is
    counted while it is stalled alone: a token that is read at once costs nothing here.
    """

    def __init__(self, transport: asyncio.Transport, limits: HttpLimits) -> None:
        transport.set_write_buffer_limits(high=limits.buffer_bytes)
        self._transport = transport
        self._limits = limits
        self.stalled = False
        self._written = 0
        self._read = 0
        self._unsent = 0
        self._progress_s = 0.0
        self._waiter: asyncio.Future[None] | None = None

    @property
    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def pause(self, exchange: HttpExchange | None, now_s: float) -> None:
        """exchange: what is being answered, and will write more."""
        self.stalled = True
        if exchange is not None:
            exchange.transport = self
        self.mark(now_s)

    def write(self, data: bytes) -> None:
        """A Writer's, while stalled."""
        self._written += len(data)
        self._transport.write(data)

    def abort(self) -> None:
        self._transport.abort()

    def resume(self, exchange: HttpExchange | None) -> None:
        """The client has read most of it, or has gone."""
        self.stalled = False
        if exchange is not None:
            exchange.transport = self._transport
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def drained(self) -> None:
        """Return when it is not stalled (any more). For one waiter at a time."""
        while self.stalled:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def mark(self, now_s: float) -> None:
        """Progress is what the client reads from now on."""
        self._unsent = self.unsent_bytes
        self._read = self._written - self._unsent
        self._progress_s = now_s

    def is_stuck(self, now_s: float, *, writing: bool) -> bool:
        """Asked about once a second while something waits. writing: a stream may write more."""
        unsent = self.unsent_bytes
        read = self._written - unsent
        over = writing and unsent > self._limits.max_buffer_bytes and unsent >= self._unsent
        self._unsent = unsent
        if read > self._read:
            self._read, self._progress_s = read, now_s
        return over or now_s - self._progress_s > self._limits.stall_s

    def is_broken(self) -> bool:
        """Whether the client's side has said that nobody is there."""
        sock: socket.socket | None = self._transport.get_extra_info("socket")
        return sock is not None and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) != 0
