"""Bytes on a connection: nothing raises, little is held, and no cut of the stream changes what is asked."""

from __future__ import annotations

import asyncio
import atexit
from typing import Any, cast

from firelane.api.errors import envelope
from firelane.gateway.config import HttpLimits
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.http.protocol import HttpConnection
from fuzz.pieces import pieces
from fuzz.target import Target

LIMITS = HttpLimits(header_bytes=4 << 10, body_bytes=1 << 10, all_bodies_bytes=64 << 10, pipelined=1 << 10)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
RUNNER = asyncio.Runner()
atexit.register(RUNNER.close)
Asked = tuple[bytes, bytes, dict[bytes, bytes], bytes, str]
"""Method, path, fields and body of one request, or the status that it is refused with: of several faults any
one may be told."""


class Transport:
    """Remembers what was written."""

    def __init__(self) -> None:
        self.sent = b""
        self.closing = False

    def write(self, data: bytes) -> None:
        assert not self.closing
        self.sent += data

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def _nothing(self) -> None:
        pass

    write_eof = pause_reading = resume_reading = _nothing

    def close(self) -> None:
        self.closing = True

    abort = close


def run(data: bytes) -> None:
    RUNNER.run(_compare(data))


async def _compare(data: bytes) -> None:
    whole = _asked([data])
    for size in (1, 7):
        assert _asked(pieces(data, size)) == whole, f"pieces of {size} bytes are read in another way"


def _asked(parts: list[bytes]) -> list[Asked]:
    """The requests that a client asks for whose bytes come in these parts."""
    exchanges: list[Exchange] = []

    def handle(exchange: Exchange) -> None:
        exchanges.append(exchange)
        error = exchange.request.error
        status = 200 if error is None else error.status
        exchange.respond(status, b"{}" if error is None else envelope(status, str(error)))

    connections, transport = ConnectionSet(handle, LIMITS, lambda: 0.0), Transport()
    connection = HttpConnection(connections)
    connection.connection_made(cast(Any, transport))
    for part in parts:
        if not transport.closing:
            connection.data_received(part)
        assert 0 <= connections.held_bytes <= LIMITS.all_bodies_bytes
    if not transport.closing:
        connection.eof_received()
    connection.connection_lost(None)
    assert connections.held_bytes == 0
    assert len(connections) == 0
    assert transport.sent.replace(CONTINUE, b"").count(b"HTTP/1.1 ") == len(exchanges)
    return [_of(exchange) for exchange in exchanges]


def _of(exchange: Exchange) -> Asked:
    request = exchange.request
    assert len(request.headers) <= 128
    assert request.error is not None or request.path[:1] in (b"/", b"*")
    if request.error is not None:  # what had come of it counts for nothing
        return b"", b"", {}, b"", str(request.error.status)
    return request.method, request.path, request.headers, bytes(request.body), ""


TARGET = Target(
    run=run,
    words=(
        *(
            b"\r\n",
            b"\r\n\r\n",
            b"0\r\n\r\n",
            b"ffffffff\r\n",
            b"GET / HTTP/1.1\r\n",
            b"POST /v1 HTTP/1.1\r\n",
        ),
        *(b"host: localhost\r\n", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n", b"HTTP/1.0"),
        *(b"connection: upgrade\r\nupgrade: h2c\r\n", b"connection: close\r\n", b"expect: 100-continue\r\n"),
        *(b"keep-alive", b"content-type: ", b"authorization: Bearer ", b"http://localhost/", b"OPTIONS *"),
    ),
)
