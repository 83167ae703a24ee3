"""Answers on an HTTP/1.1 connection: their bytes, and what the client has not read of them yet."""

from __future__ import annotations

import asyncio
import re
import secrets
import socket
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from firelane.gateway.config import HttpLimits
from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_STATUS_LINES[529] = b"HTTP/1.1 529 Overloaded\r\n"  # Anthropic's, which no standard has


class ExchangeConnection(Protocol):
    """The connection of an exchange, as it sees it."""

    def keeps_alive(self, request: Request) -> bool: ...
    async def drained(self) -> None:
        """Return when the client reads again, or has gone."""
        ...

    def answered(self, request: Request, status: int) -> None:
        """The head of an answer is on its way."""
        ...

    def exchange_done(self, keep_alive: bool) -> None:
        """The exchange is complete."""
        ...


class HttpExchange:
    """The Exchange of one request on a connection, which may put another writer in `transport`'s place."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_events",
        "error_form",
        "extra_headers",
        "gone",
        "id",
        "on_gone",
        "request",
        "started",
        "transport",
    )

    def __init__(
        self, request: Request, connection: ExchangeConnection, transport: asyncio.Transport
    ) -> None:
        self.request = request
        self.id = request_id(request.headers)
        self.extra_headers = b"x-request-id: %b\r\n%b" % (self.id.encode(), request.cors)
        self.started = False
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = None
        self._connection = connection
        self.transport: asyncio.Transport | Outflow = transport
        self._chunked = True
        self._events = False

    def respond(self, status: int, body: bytes, *, content_type: bytes = JSON, headers: bytes = b"") -> None:
        """To HEAD, and with status 304, only the length of `body` goes out (RFC 9110, 8.6)."""
        if self.gone:
            return
        self.started = True
        if status >= 400 and self.error_form is not None:
            status, body = self.error_form(status, body)
        self._connection.answered(self.request, status)
        keep = self._connection.keeps_alive(self.request)
        head = b"%bcontent-type: %b\r\ncontent-length: %d\r\n%b%b%b\r\n" % (
            _STATUS_LINES[status],
            content_type,
            len(body),
            self.extra_headers,
            headers,
            b"" if keep else b"connection: close\r\n",
        )
        without_body = self.request.method == b"HEAD" or status == 304
        self.transport.write(head if without_body else head + body)
        self._finish(keep)

    def start_stream(self, content_type: bytes = EVENT_STREAM) -> None:
        self.started = True
        if self.gone:
            return
        self._connection.answered(self.request, 200)
        self._chunked = self.request.version != "1.0"
        self._events = content_type is EVENT_STREAM
        framing = b"transfer-encoding: chunked\r\n" if self._chunked else b"connection: close\r\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n%b%b\r\n" % (
            content_type,
            self.extra_headers,
            framing,
        )
        self.transport.write(head)

    def send(self, data: bytes) -> None:
        if self.gone:
            return
        if self._chunked:
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            self.transport.write(data)

    async def drained(self) -> None:
        if not self.gone:
            await self._connection.drained()

    def end(self) -> None:
        if self.gone:
            return
        if self._chunked:
            self.transport.write(END_OF_CHUNKS)
        self._finish(self._chunked and self._connection.keeps_alive(self.request))

    def abort(self) -> None:
        if not self.gone:
            self.transport.abort()

    def probe(self) -> bool:
        """Write what means nothing to the client, so that its side objects if nobody is there any more: an
        interim response, or a comment among events. False: there is no such thing here.
        """
        if self.started and self._events:
            self.send(b":\n\n")
        elif not self.started and self.request.version == "1.1":
            self.transport.write(CONTINUE)
        else:
            return False
        return True

    def _finish(self, keep_alive: bool) -> None:
        self.gone = True
        self.on_gone = self.error_form = None  # they may hold the exchange
        self._connection.exchange_done(keep_alive)

    def on_disconnect(self) -> None:
        """The connection is gone (called by it)."""
        self.gone = True
        on_gone, self.on_gone, self.error_form = self.on_gone, None, None
        if on_gone is not None:
            on_gone()


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
        """Send what an exchange writes while stalled."""
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


def request_id(headers: dict[bytes, bytes]) -> str:
    """The client's own `x-request-id` where it is short and plain, else a new one."""
    given = headers.get(b"x-request-id", b"").decode("ascii", "replace")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
