"""Bytes on a connection: whatever comes, it never raises, holds little, answers no more than was asked."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mutate import mutate

from firelane.api.errors import envelope
from firelane.gateway.config import HttpLimits
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.http.protocol import Connection

FILES = sorted((Path(__file__).parents[1] / "gateway" / "hostile" / "http").iterdir())
SEEDS = [file.read_bytes() for file in FILES]
TOKENS = [
    *(b"\r\n", b"\n", b"\r\n\r\n", b"\0", b" ", b":", b"0\r\n", b"ffffffff\r\n", b"GET / HTTP/1.1\r\n"),
    *(b"host: localhost\r\n", b"content-length: 5\r\n", b"transfer-encoding: chunked\r\n"),
    *(b"connection: upgrade\r\nupgrade: h2c\r\n", b"connection: close\r\n", b"expect: 100-continue\r\n"),
]
LIMITS = HttpLimits(header_bytes=4 << 10, body_bytes=16 << 10, all_bodies_bytes=64 << 10)


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


def run(draw: random.Random) -> None:
    asyncio.run(_converse(draw))


async def _converse(draw: random.Random) -> None:
    asked: list[Exchange] = []
    later: list[Callable[[], None]] = []

    def handle(exchange: Exchange) -> None:
        asked.append(exchange)
        error = exchange.request.error
        if error is not None:
            exchange.respond(error.status, envelope(error.status, str(error)))
        elif draw.random() < 0.5:
            exchange.respond(200, b"{}")
        else:
            later.append(lambda: exchange.respond(200, b"{}"))

    connections = ConnectionSet(handle, LIMITS, lambda: 0.0)
    transport, connection = Transport(), Connection(connections)
    connection.connection_made(as_any(transport))
    data = mutate(draw, SEEDS, TOKENS)
    while data:
        size = draw.choice((1, 7, 100, 5000, 1 << 16))
        if not transport.closing:
            connection.data_received(data[:size])
        data = data[size:]
        while later and draw.random() < 0.7:
            later.pop(0)()
        assert 0 <= connections.held_bytes <= LIMITS.all_bodies_bytes + (64 << 10)
    if not transport.closing:
        connection.eof_received()
    connection.connection_lost(None)
    assert connections.held_bytes == 0
    assert len(connections) == 0
    answers = transport.sent.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"").count(b"HTTP/1.1 ")
    assert answers <= len(asked)
    for exchange in asked:
        assert len(exchange.request.headers) <= 128
        assert exchange.request.error is not None or exchange.request.path[:1] in (b"/", b"*")


def as_any(value: Any) -> Any:
    return value
