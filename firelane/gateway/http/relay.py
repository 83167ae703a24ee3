"""Requests that another process of the server answers: bodies go there and come back as they arrive."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import cast

import httptools

from firelane.errors import EngineDeadError
from firelane.gateway.http.exchange import EVENT_STREAM, BodySink, Exchange, Request, Route

MOST_BYTES = 256 << 10
"""Bytes of an answer that wait for a slow client, at most."""
HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"upgrade", b"expect", b"te"}
)
"""Fields of one connection (RFC 9110, 7.6.1), and those that say how long a body is."""
OWN = HOP_BY_HOP | {b"content-type", b"x-request-id", b"vary"}
"""Fields of the answer that this process writes itself."""
CORS = b"access-control-"
GONE = "the process that answers this has gone: try again"


class RequestRelay:
    """Connects to the process that answers. connect: a new connection to it, for one request. open: requests
    that are being answered there.
    """

    def __init__(self, connect: Callable[[], socket.socket]) -> None:
        self.open = 0
        self._connect = connect

    def routes(self, routes: Iterable[Route], limit_bytes: int) -> Iterator[Route]:
        """The routes, those that the other process owns led there. limit_bytes: of a body, which may be
        larger than that process takes."""

        def open_body(request: Request) -> BodySink:
            return self._opened(request, limit_bytes)

        for route in routes:
            yield replace(route, handle=self._handle, open_body=open_body) if route.owned else route

    def _opened(self, request: Request, limit_bytes: int) -> RelayedRequest:
        request.headers.setdefault(b"x-request-id", f"req-{secrets.token_hex(12)}".encode())
        return RelayedRequest(self._connect, request, limit_bytes)

    async def _handle(self, exchange: Exchange) -> None:
        """Raises EngineDeadError."""
        request = exchange.request
        relayed = request.sink
        if not isinstance(relayed, RelayedRequest):  # a public path, whose body nobody wants
            request.headers[b"x-request-id"] = exchange.id.encode()
            relayed = RelayedRequest(self._connect, request, 0)
        await self._answer(exchange, relayed)

    async def forward(self, exchange: Exchange, body: bytes | bytearray) -> None:
        """Have a request answered there of which this became known when its body was read. Raises
        EngineDeadError.
        """
        exchange.request.headers[b"x-request-id"] = exchange.id.encode()
        lines = exchange.extra_headers.splitlines(keepends=True)  # what reading it has added comes again
        exchange.extra_headers = b"".join(line for line in lines if _is_own(line.partition(b":")[0]))
        relayed = RelayedRequest(self._connect, exchange.request, len(body))
        if body:
            relayed.write(bytes(body))
        await self._answer(exchange, relayed)

    async def _answer(self, exchange: Exchange, relayed: RelayedRequest) -> None:
        exchange.on_gone = relayed.abandon
        exchange.error_form = None  # the answer has its form
        self.open += 1
        try:
            await relayed.answer(exchange)
        except (OSError, httptools.HttpParserError) as error:
            if not exchange.started:
                raise EngineDeadError(GONE) from error
            exchange.abort()
        finally:
            self.open -= 1
            relayed.abandon()


def _is_own(name: bytes) -> bool:
    return name in OWN or name.startswith(CORS)


class RelayedRequest:
    """A BodySink. Connects when the first byte of a body is there, or the request is complete."""

    def __init__(self, connect: Callable[[], socket.socket], request: Request, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._connect, self._request = connect, request
        self._pieces: list[bytes] = []
        self._pumping: asyncio.Task[None] | None = None
        self._upstream: _Upstream | None = None
        self._has_body = self._abandoned = False

    def write(self, data: bytes) -> asyncio.Future[None] | None:
        if self._abandoned:
            return None
        self._has_body = True
        self._pieces.append(b"%x\r\n%b\r\n" % (len(data), data))
        if self._pumping is None or self._pumping.done():
            self._pumping = asyncio.get_running_loop().create_task(self._pump())
        return self._pumping

    def abandon(self) -> None:
        self._abandoned = True
        if self._upstream is not None:
            self._upstream.close()

    async def answer(self, exchange: Exchange) -> None:
        """Raises OSError and HttpParserError where the other process fails."""
        if self._pumping is not None:
            await self._pumping
        if self._has_body:
            self._pieces.append(b"0\r\n\r\n")
        await self._pump()
        if self._upstream is None:
            raise ConnectionResetError(GONE)
        await _Answer(exchange).read(self._upstream)

    async def _pump(self) -> None:
        """A failure here comes again where the answer is read."""
        with contextlib.suppress(OSError):
            upstream = self._upstream
            if upstream is None:
                loop = asyncio.get_running_loop()
                _, upstream = await loop.create_unix_connection(_Upstream, sock=self._connect())
                self._upstream = upstream
                await upstream.write(self._head())
            while self._pieces:
                await upstream.write(self._pieces.pop(0))
            if self._abandoned:
                upstream.close()

    def _head(self) -> bytes:
        """A HEAD goes as GET: the length of what is not sent is told by the answer that would be."""
        request = self._request
        method = b"GET" if request.method == b"HEAD" else request.method
        target = request.path + (b"?" + request.query if request.query else b"")
        lines = [b"%b %b HTTP/1.1" % (method, target)]
        lines += [b"%b: %b" % field for field in request.headers.items() if field[0] not in HOP_BY_HOP]
        if self._has_body:
            lines.append(b"transfer-encoding: chunked")
        elif method not in (b"GET", b"DELETE"):
            lines.append(b"content-length: 0")
        return b"\r\n".join([*lines, b"connection: close", b"", b""])


class _Upstream(asyncio.Protocol):
    """A connection to the other process. Once that answers, nobody reads the rest of the body: it goes
    nowhere, so that a refusal that comes early is not lost with the connection."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._data = bytearray()
        self._closed = False
        self._news, self._room = asyncio.Event(), asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        self._news.set()
        self._room.set()
        if len(self._data) > MOST_BYTES:
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._closed = True
        self._news.set()
        self._room.set()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    async def write(self, data: bytes) -> None:
        """Return when there is room for more."""
        if not (self._closed or self._data):
            self._transport.write(data)
            await self._room.wait()

    async def read(self) -> bytes:
        """All that has come; b"" at the end."""
        while not (self._data or self._closed):
            self._news.clear()
            await self._news.wait()
        data = bytes(self._data)
        self._data.clear()
        if not self._closed:
            self._transport.resume_reading()
        return data

    def close(self) -> None:
        self._transport.close()


class _Answer:
    """The answer on its way back; called by its parser."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._parser = httptools.HttpResponseParser(self)
        self._length: int | None = None
        self._type, self._headers = b"", b""
        self._body = bytearray()
        self._complete = False

    async def read(self, upstream: _Upstream) -> None:
        """All of it, once. Raises OSError and HttpParserError where the other process fails."""
        try:
            while not self._complete and not self._exchange.gone:
                data = await upstream.read()
                if not data:
                    raise ConnectionResetError(GONE)
                self._parser.feed_data(data)
                await self._exchange.drained()
        finally:
            del self._parser  # it holds this answer: the two would wait for a garbage collection

    def on_message_begin(self) -> None:
        self._length, self._headers, self._type = None, b"", b""

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"content-length":
            self._length = int(value)
        elif name == b"content-type":
            self._type = value
        elif not _is_own(name) and not self._is_there(name):
            self._headers += b"%b: %b\r\n" % (name, value)

    def on_headers_complete(self) -> None:
        if self._is_interim or self._length is not None:
            return
        if self._exchange.request.method == b"HEAD":
            self._complete = True
            self._exchange.respond(200, b"", content_type=self._type, headers=self._headers)
        elif self._type == EVENT_STREAM.partition(b"\r\n")[0]:
            self._exchange.extra_headers += self._headers
            self._exchange.start_stream()
        else:
            self._exchange.start_stream(b"\r\n".join([self._type, self._headers]).removesuffix(b"\r\n"))

    def on_body(self, body: bytes) -> None:
        if self._length is None:
            self._exchange.send(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        if self._is_interim or self._complete:
            return
        self._complete = True
        if self._length is None:
            self._exchange.end()
        else:
            status, body = self._parser.get_status_code(), bytes(self._body)
            self._exchange.respond(status, body, content_type=self._type, headers=self._headers)

    def _is_there(self, name: bytes) -> bool:
        """Whether this process writes such a line by itself."""
        line = b"\r\n%b:" % name
        return line in b"\r\n" + self._exchange.extra_headers or line in b"\r\n" + EVENT_STREAM

    @property
    def _is_interim(self) -> bool:
        return self._parser.get_status_code() < 200
