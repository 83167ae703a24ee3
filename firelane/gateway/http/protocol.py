"""HTTP/1.1 on an asyncio protocol and httptools: requests in, responses and event streams out.

One Connection per socket; one Exchange per request, answered in the order of arrival. A handler is a plain
function: it answers at once or keeps the Exchange and writes to it later from wherever the data comes, so a
token costs no task switch. Limits: header size 431, body size 413, a request that does not arrive in time
408; a client that does not read is cut off by the owner's sweep.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import cast

import httptools

from firelane.api.errors import envelope
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import RETRY_SOON, Request
from firelane.gateway.http.http_exchange import HttpExchange

log = logging.getLogger(__name__)
LINGER_S = 2.0
SINK_BYTES_PER_S = 64 << 10
"""A body with a sink may take HttpLimits.receive_s, and longer as long as it comes at this rate."""


class Connection(asyncio.Protocol):
    """Parses one client's bytes. States: reading a request, answering, lingering (after a refusal, until
    the client has read it), closed. `deadline_s` is when the sweep closes it.
    """

    def __init__(self, owner: ConnectionSet) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._held_bytes = 0
        self._header_bytes = 0
        self._in_headers = True
        self._waiting: deque[Request] = deque()
        self._exchange: HttpExchange | None = None
        self._pumping = False
        self._lingering = False
        self._refused = False
        self._stalled_since_s: float | None = None
        self._unstalled: asyncio.Future[None] | None = None
        self._resting = False
        self._began_s = 0.0
        self._deadline_s = 0.0

    @property
    def busy(self) -> bool:
        return self._exchange is not None or self._incoming is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes)
        self._deadline_s = self._owner.now_s() + self._limits.idle_s
        self._owner.add(self)

    def reject(self, message: str) -> None:
        """Refuse whatever the client is about to ask (called by the owner)."""
        self._refuse(503, message)
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._owner.discard(self)
        self._hold(-self._held_bytes)
        self._forget(self._incoming)
        self._forget_waiting()
        self.resume_writing()
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.on_disconnect()

    def eof_received(self) -> bool:
        return False  # a client that has sent its last byte is gone: its stream is freed

    def pause_writing(self) -> None:
        self._stalled_since_s = self._owner.now_s()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        unstalled, self._unstalled = self._unstalled, None
        if unstalled is not None and not unstalled.done():
            unstalled.set_result(None)

    async def drained(self) -> None:
        """Return when the client reads again, or has gone. For one waiter at a time."""
        while self._stalled_since_s is not None:
            self._unstalled = asyncio.get_running_loop().create_future()
            await self._unstalled

    def data_received(self, data: bytes) -> None:
        if self._lingering or self._refused:
            return
        if self._in_headers:
            self._header_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refused = True  # served as a plain request; what follows is not HTTP/1.1
        except httptools.HttpParserError as error:
            self._refuse(400, f"malformed HTTP request: {error}")
        if self._in_headers and self._header_bytes > self._limits.header_bytes:
            self._refuse(431, f"request headers are over {self._limits.header_bytes} bytes")
        self._pump()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._incoming = Request()
        self._began_s = self._owner.now_s()
        self._deadline_s = self._began_s + self._limits.header_s
        self._body, self._body_bytes = [], 0

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None:
            self._incoming.path += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is not None:
            self._incoming.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self._in_headers = False
        self._deadline_s = self._began_s + self._limits.receive_s
        request = self._incoming
        if request is None:
            return
        request.method = self._parser.get_method()
        request.version = self._parser.get_http_version()
        request.keep_alive = self._parser.should_keep_alive() and not self._parser.should_upgrade()
        request.sink = self._owner.open_body(request)
        length = request.headers.get(b"content-length", b"0")
        if length.isdigit() and int(length[:20]) > self._body_limit(request):
            self._refuse_body(request)
        elif request.headers.get(b"expect", b"").lower() == b"100-continue" and not self.busy_answering:
            self._write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        request = self._incoming
        if self._refused or request is None:
            return
        self._body_bytes += len(body)
        if self._body_bytes > self._body_limit(request):
            self._refuse_body(request)
        elif request.sink is None:
            self._body.append(body)
            self._hold(len(body))
            if self._owner.held_bytes > self._limits.all_bodies_bytes:
                self._refuse(503, "too many bodies arrive at the same time: try again later")
        else:
            self._deadline_s += len(body) / SINK_BYTES_PER_S
            busy = request.sink.write(body)
            if busy is not None:
                self._rest_until(busy)

    def _hold(self, more_bytes: int) -> None:
        """Count bytes of bodies in memory that no handler has yet; negative: no longer."""
        self._held_bytes += more_bytes
        self._owner.held_bytes += more_bytes

    def _rest_until(self, free: asyncio.Future[None]) -> None:
        """Leave the client's bytes where they are until then."""
        transport = self._transport
        if self._resting or transport is None or transport.is_closing():
            return
        self._resting = True
        transport.pause_reading()
        free.add_done_callback(self._go_on)

    def _go_on(self, _: asyncio.Future[None]) -> None:
        self._resting = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def on_message_complete(self) -> None:
        request, self._incoming = self._incoming, None
        self._in_headers, self._header_bytes = True, 0
        if request is None or self._refused:
            return
        request.path, _, request.query = request.path.partition(b"?")
        request.body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body = []
        self._waiting.append(request)
        if len(self._waiting) > self._limits.pipelined:
            self._refuse(429, f"more than {self._limits.pipelined} requests wait on one connection")

    # Answering.

    @property
    def busy_answering(self) -> bool:
        return self._exchange is not None or bool(self._waiting)

    def _body_limit(self, request: Request) -> int:
        return self._limits.body_bytes if request.sink is None else request.sink.limit_bytes

    def _refuse_body(self, request: Request) -> None:
        self._refuse(413, f"the body is over {self._body_limit(request)} bytes")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what waits, then this error, then close."""
        if self._refused:
            return
        self._refused = True
        self._forget(self._incoming)
        self._incoming = None
        self._hold(-sum(map(len, self._body)))
        self._body = []
        refusal = Request()
        refusal.refusal = (status, message)
        self._waiting.append(refusal)

    def _pump(self) -> None:
        if self._pumping or self._transport is None:
            return
        self._pumping = True
        while self._waiting and self._exchange is None and not self._transport.is_closing():
            request = self._waiting.popleft()
            self._hold(-len(request.body))
            self._exchange = exchange = HttpExchange(request, self, self._transport)
            if request.refusal is not None:
                status, message = request.refusal
                retry = RETRY_SOON if status == 503 else b""
                exchange.respond(status, envelope(status, message), headers=retry)
            else:
                self._owner.handle(exchange)
        self._pumping = False

    def keeps_alive(self, request: Request) -> bool:
        return request.keep_alive and not self._owner.closing

    def exchange_done(self, keep_alive: bool) -> None:
        """The current exchange is complete (called by it)."""
        self._exchange = None
        now_s = self._owner.now_s()
        if keep_alive:
            self._deadline_s = now_s + self._limits.idle_s
            self._pump()
            return
        self._lingering = True
        self._forget_waiting()
        self._deadline_s = now_s + LINGER_S
        assert self._transport is not None
        if not self._refused and self._incoming is None:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()  # let the client read the refusal before its own writes fail

    def _forget(self, request: Request | None) -> None:
        """A request that nobody will handle."""
        if request is not None and request.sink is not None:
            request.sink.abandon()

    def _forget_waiting(self) -> None:
        for request in self._waiting:
            self._forget(request)
            self._hold(-len(request.body))
        self._waiting.clear()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def sweep(self, now_s: float) -> None:
        """Close when a deadline has passed; called about once a second."""
        assert self._transport is not None
        if self._stalled_since_s is not None:
            over = self._transport.get_write_buffer_size() > self._limits.max_buffer_bytes
            if over or now_s - self._stalled_since_s > self._limits.stall_s:
                log.info("client_not_reading: connection aborted")
                self._transport.abort()
        elif self._exchange is None and now_s > self._deadline_s:
            if self._incoming is None:
                self._transport.close()
            else:
                part = "headers" if self._in_headers else "body"
                self._refuse(408, f"the request's {part} did not arrive in time")
                self._pump()

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken yet."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def close_if_idle(self) -> None:
        if not self.busy and self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
