"""HTTP/1.1 on an asyncio protocol and httptools: requests in, responses and event streams out.

One HttpConnection per socket; one Exchange per request, answered in the order of arrival. A handler is a
plain function: it answers at once or keeps the Exchange and writes to it later from wherever the data comes,
so a token costs no task switch. A request is accepted or refused when its head is complete, before any of its
body is kept. Limits: all but the body 431, the body 413, a request that does not arrive in time 408; a client
that does not read is cut off by the owner's sweep.
"""

from __future__ import annotations

import asyncio
import logging
from typing import cast

import httptools

from firelane.errors import RequestError
from firelane.gateway.http.connections import ConnectionSet, Pipeline
from firelane.gateway.http.exchange import HttpError, Request, client_of
from firelane.gateway.http.head import (
    MOST_FIELDS,
    add_field,
    check_head,
    framing,
    has_body,
    large_body,
    large_head,
    late,
    malformed,
    too_many_bodies,
    too_many_pipelined,
)
from firelane.gateway.http.http_exchange import CONTINUE, HttpExchange, Outflow

log = logging.getLogger(__name__)
LINGER_S = 2.0
WATCH_S = 0.1
IGNORED_BYTES = 64 << 20
"""Passed over after a refusal, so that a client which reads when it has sent all gets it."""
SINK_BYTES_PER_S = 64 << 10
"""A body with a sink may take HttpLimits.receive_s, and longer as long as it comes at this rate."""
PARSED_BYTES = 64 << 10
"""Given to the parser at a time: limits are looked at in between."""
CHUNK_FRAME_BYTES = 24
"""Bytes of a chunk's size and line ends, which count against no limit."""


class HttpConnection(asyncio.Protocol):
    """Parses one client's bytes. States: reading a request, answering, lingering (after a refusal, until
    the client has read it), closed. `deadline_s` is when the sweep closes it. deaf: what the client sends
    from now on is passed over.
    """

    def __init__(self, owner: ConnectionSet) -> None:
        self._owner = owner
        self._limits = owner.limits
        self._transport: asyncio.Transport
        self._outflow: Outflow
        self._parser = httptools.HttpRequestParser(self)
        self._incoming: Request | None = None
        self._in_head = True
        self._num_fields = 0
        self._head_bytes = 0
        self._frame_bytes = 0
        self._body: bytes | bytearray = b""
        self._body_bytes = 0
        self._upgrading = self._replaying = False
        self._waiting = Pipeline(owner)
        self._exchange: HttpExchange | None = None
        self._pumping = False
        self._deaf = False
        self._ignored_bytes = 0
        self._half_closed = False
        self._sink_busy = False
        self._reading = True
        self._began_s = 0.0
        self._deadline_s = 0.0

    @property
    def busy(self) -> bool:
        return self._exchange is not None or self._incoming is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._outflow = Outflow(self._transport, self._limits)
        self._client = client_of(transport)
        self._deadline_s = self._owner.now_s() + self._limits.idle_s
        self._owner.add(self)

    def reject(self, message: str) -> None:
        """Refuse whatever the client is about to ask (called by the owner)."""
        self._refuse(HttpError(503, message, retry_after_s=1))
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._owner.discard(self)
        del self._parser  # it holds this connection: the two would wait for a garbage collection
        self._forget_incoming()
        self._waiting.forget()
        exchange, self._exchange = self._exchange, None
        self._outflow.resume(None)
        if exchange is not None:
            exchange.on_disconnect()

    def eof_received(self) -> bool:
        """A client that has sent its last byte gets its answer, unless it has gone: then a byte to it comes
        back as an error, for which it is watched.
        """
        self._forget_incoming()
        self._deaf = self._half_closed = True
        stays = self._exchange is not None and self._exchange.probe()
        if stays:
            self._watch()
        return stays and self._transport.can_write_eof()  # under TLS there is no half of a connection

    def _watch(self) -> None:
        """Cut a half-closed connection as soon as nobody is there."""
        if self._exchange is None or self._transport.is_closing():
            return
        if self._outflow.is_broken():
            self._transport.abort()
        else:
            asyncio.get_running_loop().call_later(WATCH_S, self._watch)

    def pause_writing(self) -> None:
        self._outflow.pause(self._exchange, self._owner.now_s())

    def resume_writing(self) -> None:
        self._outflow.resume(self._exchange)
        self._pump()

    async def drained(self) -> None:
        await self._outflow.drained()

    def data_received(self, data: bytes) -> None:
        if len(data) <= PARSED_BYTES:
            self._parse(data)
        else:
            whole = memoryview(data)
            for start in range(0, len(data), PARSED_BYTES):
                self._parse(whole[start : start + PARSED_BYTES])
        self._pump()

    def _parse(self, data: bytes | memoryview) -> None:
        if self._deaf:
            self._ignored_bytes += len(data)
            return
        self._frame_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refuse(malformed(error))
        self._frame_bytes = max(0, self._frame_bytes)  # what one chunk did not need is of no use to others
        if self._incoming is not None and self._frame_bytes > self._limits.header_bytes:
            self._refuse_head()

    def _ignore_upgrade(self, rest: bytes | memoryview) -> None:
        """Serve the request as it stands (RFC 9110, 7.8): a new parser is told of its body and goes on."""
        request, self._upgrading = self._incoming, False
        if request is None or self._deaf:
            return
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = True
        self._parser.feed_data(framing(request))
        self._frame_bytes -= len(rest)
        self._parse(rest)

    # Called by the parser.

    def on_message_begin(self) -> None:
        if self._replaying or self._deaf:
            return
        self._incoming = Request(self._client)
        self._in_head, self._num_fields, self._head_bytes = True, 0, 0
        self._began_s = self._owner.now_s()
        self._deadline_s = self._began_s + self._limits.header_s
        self._body, self._body_bytes = b"", 0

    def on_url(self, url: bytes) -> None:
        if self._incoming is not None and self._in_head:
            self._incoming.path += url
            self._head_bytes += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self._incoming
        if request is None or not self._in_head:  # a trailer is dropped (RFC 9110, 6.5.1)
            return
        self._num_fields += 1
        self._head_bytes += len(name) + len(value) + 4
        if self._num_fields > MOST_FIELDS or self._head_bytes > self._limits.header_bytes:
            self._refuse_head()
            return
        try:
            add_field(request, name.lower(), value)
        except HttpError as error:
            self._refuse(error)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._replaying:
            self._replaying = False
            return
        request, parser = self._incoming, self._parser
        if request is None:
            return
        self._deadline_s = self._began_s + self._limits.receive_s
        request.method = parser.get_method()
        request.version = parser.get_http_version()
        request.keep_alive = parser.should_keep_alive()
        self._upgrading = parser.should_upgrade()
        try:
            check_head(request)
        except HttpError as error:
            self._refuse(error)
            return
        self._accept(request)

    def _accept(self, request: Request) -> None:
        """Nothing of the body is kept of a request that will be refused."""
        try:
            self._owner.accept(request)
        except RequestError as error:
            request.error = error.with_traceback(None)  # which holds the request
        if not has_body(request):
            return
        length = request.headers.get(b"content-length", b"0")
        if request.error is not None:
            self._refuse(request.error)
        elif int(length) > self._body_limit(request):
            self._refuse_body(request)
        elif request.headers.get(b"expect", b"").lower() == b"100-continue" and not self.busy_answering:
            self._transport.write(CONTINUE)

    def on_body(self, body: bytes) -> None:
        request = self._incoming
        if request is None:
            return
        size = len(body)
        self._frame_bytes -= size + CHUNK_FRAME_BYTES
        self._body_bytes += size
        if self._body_bytes > self._body_limit(request):
            self._refuse_body(request)
        elif request.sink is None:
            self._keep(body)
        else:
            self._deadline_s += size / SINK_BYTES_PER_S
            busy = request.sink.write(body)
            if busy is not None and not self._sink_busy:
                self._sink_busy = True
                busy.add_done_callback(self._sink_free)

    def _keep(self, body: bytes) -> None:
        if isinstance(self._body, bytearray):
            self._body += body
        else:
            self._body = bytearray(self._body + body) if self._body else body
        self._owner.held_bytes += len(body)
        if self._owner.held_bytes > self._limits.all_bodies_bytes:
            self._refuse(too_many_bodies())

    def _sink_free(self, _: asyncio.Future[None]) -> None:
        self._sink_busy = False
        self._pace()

    def _pace(self) -> None:
        """Leave the client's bytes where they are as long as what it sent already is enough."""
        limits = self._limits
        enough = self._sink_busy or self._waiting.num_bytes > limits.header_bytes
        enough = enough or self._ignored_bytes > IGNORED_BYTES
        if self._reading is enough and not self._half_closed and not self._transport.is_closing():
            self._reading = not enough
            (self._transport.pause_reading if enough else self._transport.resume_reading)()

    def on_message_complete(self) -> None:
        if self._upgrading:  # so the parser thinks; the body follows
            return
        request, self._incoming = self._incoming, None
        self._frame_bytes = 0
        if request is None:
            return
        request.body, self._body = self._body, b""
        self._waiting.add(request, self._head_bytes)
        if len(self._waiting) > self._limits.pipelined:
            self._refuse(too_many_pipelined(self._limits.pipelined))

    # Answering.

    @property
    def busy_answering(self) -> bool:
        return self._exchange is not None or bool(self._waiting)

    def _body_limit(self, request: Request) -> int:
        if request.sink is not None:
            return request.sink.limit_bytes
        return self._limits.body_bytes if request.body_limit is None else request.body_limit

    def _refuse_head(self) -> None:
        self._refuse(large_head(self._limits.header_bytes))

    def _refuse_body(self, request: Request) -> None:
        self._refuse(large_body(self._body_limit(request)))

    def _refuse(self, error: RequestError) -> None:
        """Answer what waits, then this error, then close."""
        if self._deaf:
            return
        self._deaf = True
        request = self._incoming or Request()
        self._forget_incoming()
        request.error, request.keep_alive = error.with_traceback(None), False
        self._waiting.add(request, self._head_bytes)

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        while self._waiting and self._exchange is None and not self._blocked():
            self._exchange = exchange = HttpExchange(self._waiting.take(), self, self._transport)
            self._owner.handle(exchange)
        self._pumping = False
        self._pace()

    def _blocked(self) -> bool:
        """The client has to read, or has gone."""
        return self._outflow.stalled or self._transport.is_closing()

    def keeps_alive(self, request: Request) -> bool:
        last = self._half_closed and not self._waiting
        return request.keep_alive and not self._owner.closing and not last

    def answered(self, request: Request, status: int) -> None:
        self._owner.answered(request, status)

    def exchange_done(self, keep_alive: bool) -> None:
        """The current exchange is complete (called by it)."""
        self._exchange = None
        now_s = self._owner.now_s()
        if not self._outflow.stalled:
            self._outflow.mark(now_s)
        if keep_alive:
            self._deadline_s = now_s + self._limits.idle_s
            self._pump()
            return
        listening = self._incoming is not None or self._deaf
        self._deaf = True
        self._waiting.forget()
        self._deadline_s = now_s + LINGER_S
        if self._half_closed or not listening:
            self._transport.close()
        elif self._transport.can_write_eof():
            self._transport.write_eof()  # let the client read the refusal before its own writes fail

    def _forget_incoming(self) -> None:
        """Nobody will handle it."""
        request, self._incoming = self._incoming, None
        if request is not None and request.sink is not None:
            request.sink.abandon()
        if request is not None:
            request.sink = None
            self._owner.held_bytes -= len(self._body)
        self._body = b""

    def sweep(self, now_s: float) -> None:
        """Close when a deadline has passed; called about once a second."""
        writing = self._exchange is not None
        if self._outflow.stalled or (self._outflow.unsent_bytes and not writing):
            if self._outflow.is_stuck(now_s, writing=writing):
                log.info("client_not_reading: connection aborted")
                self._transport.abort()
        elif not writing and now_s > self._deadline_s:
            if self._incoming is None:
                self._transport.close()
            else:
                self._refuse(late(in_head=self._in_head))
                self._pump()

    @property
    def unsent_bytes(self) -> int:
        return self._outflow.unsent_bytes

    def close_if_idle(self) -> None:
        if not self.busy:
            self._transport.close()

    def close_when_idle(self, idle_s: float) -> None:
        """Close the connection once it is idle, as ConnectionSet.retire says."""
        if not self.busy:
            self._deadline_s = min(self._deadline_s, self._owner.now_s() + idle_s)

    def abort(self) -> None:
        self._transport.abort()
