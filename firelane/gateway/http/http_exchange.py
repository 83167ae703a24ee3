"""Answers on an HTTP/1.1 connection."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from firelane.gateway.http.exchange import EVENT_STREAM, JSON, ErrorForm, Request

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
END_OF_CHUNKS = b"0\r\n\r\n"
_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
_STATUS_LINES = {s.value: f"HTTP/1.1 {s.value} {s.phrase}\r\n".encode() for s in HTTPStatus}
_STATUS_LINES[529] = b"HTTP/1.1 529 Overloaded\r\n"  # Anthropic's, which no standard has


class Connection(Protocol):
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


class Writer(Protocol):
    """The receiver of bytes: the connection's transport, or what counts them on their way there."""

    def write(self, data: bytes) -> None: ...
    def abort(self) -> None: ...


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

    def __init__(self, request: Request, connection: Connection, transport: asyncio.Transport) -> None:
        self.request = request
        self.id = request_id(request.headers)
        self.extra_headers = b"x-request-id: %b\r\n%b" % (self.id.encode(), request.cors)
        self.started = False
        self.gone = False
        self.on_gone: Callable[[], None] | None = None
        self.error_form: ErrorForm | None = None
        self._connection = connection
        self.transport: Writer = transport
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
        self.on_gone = None
        self._connection.exchange_done(keep_alive)

    def on_disconnect(self) -> None:
        """The connection is gone (called by it)."""
        self.gone = True
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()


def request_id(headers: dict[bytes, bytes]) -> str:
    """The client's own `x-request-id` where it is short and plain, else a new one."""
    given = headers.get(b"x-request-id", b"").decode("ascii", "replace")
    return given if _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"
