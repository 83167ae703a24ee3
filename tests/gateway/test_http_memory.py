"""A connection holds limited memory for a limited time. The transport is one that the client reads as it is
told to, and the clock stands still.
"""

from __future__ import annotations

import json
import tracemalloc

import pytest
from raw_client import BODY, post

from firelane.api.errors import envelope
from firelane.gateway.config import HttpLimits
from firelane.gateway.http.connections import ConnectionSet
from firelane.gateway.http.protocol import HttpConnection

MIB = 1 << 20
GET = b"GET /version HTTP/1.1\r\nhost: localhost\r\n"
CHUNKED = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"


class Transport:
    """A socket whose other side reads when `read` is called."""

    def __init__(self) -> None:
        self.unread = 0
        self.high = 64 << 10
        self.written = self.reads = 0
        self.paused = self.closing = self.aborted = False
        self.protocol: HttpConnection

    def write(self, data: bytes) -> None:
        self.unread += len(data)
        self.written += len(data)
        if self.unread > self.high and not self.paused:
            self.paused = True
            self.protocol.pause_writing()

    def read(self, size: int) -> None:
        self.unread = max(0, self.unread - size)
        if self.paused and self.unread <= self.high // 4:
            self.paused = False
            self.protocol.resume_writing()

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def get_write_buffer_size(self) -> int:
        return self.unread

    def get_extra_info(self, _: str) -> None:
        return None

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        pass

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True


class Server:
    """A ConnectionSet whose requests stay open until the test answers them."""

    def __init__(self, **limits) -> None:
        self.now_s = 0.0
        self.exchanges = []
        self.answer = None
        self.connections = ConnectionSet(self.handle, HttpLimits(**limits), lambda: self.now_s)

    def handle(self, exchange) -> None:
        error = getattr(exchange.request, "error", None)
        if error is not None:
            exchange.respond(error.status, envelope(error.status, str(error)))
        elif self.answer is not None:
            exchange.respond(200, self.answer)
        else:
            self.exchanges.append(exchange)

    def connect(self) -> tuple[Transport, HttpConnection]:
        transport, connection = Transport(), HttpConnection(self.connections)
        transport.protocol = connection
        connection.connection_made(transport)
        return transport, connection

    def sweep(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        self.connections.sweep()


ENDLESS = {
    "target": (b"GET /", b"a"),
    "value": (GET + b"a: ", b"x"),
    "names": (GET, b"a: \r\n"),
    "other_names": (GET, None),
    "trailer": (CHUNKED + b"0\r\na: ", b"x"),
    "trailers": (CHUNKED + b"0\r\n", b"a: \r\n"),
    "extension": (CHUNKED + b"1;", b"x"),
    "pipelined": (b"", GET + b"\r\n"),
    "pipelined_large": (b"", GET + b"a: " + b"x" * 60_000 + b"\r\n\r\n"),
}


@pytest.mark.parametrize("attack", ENDLESS)
def test_without_a_key_a_connection_holds_little(attack):
    server = Server(body_bytes=0)
    _, connection = server.connect()
    head, piece = ENDLESS[attack]
    more = b"".join(b"%d: \r\n" % i for i in range(30_000)) if piece is None else piece * (MIB // len(piece))
    tracemalloc.start()
    connection.data_received(head)
    for start in range(0, 8 * len(more), 1 << 16):
        at = start % len(more)
        connection.data_received(more[at : at + (1 << 16)])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < MIB


def test_answers_that_nobody_reads_hold_up_the_next():
    """Small requests, pipelined, for large answers."""
    server = Server()
    server.answer = b"x" * (60 << 10)
    transport, connection = server.connect()
    for _ in range(1000):
        connection.data_received((GET + b"\r\n") * 20)
    assert transport.unread < MIB
    while transport.unread:
        transport.read(transport.unread)
    assert transport.written > MIB  # those that had been taken


def test_bodies_that_wait_behind_a_request_are_not_read_on():
    server = Server()
    transport, connection = server.connect()
    connection.data_received(post())
    assert getattr(transport, "reading", True)
    connection.data_received(post(b" " * (200 << 10) + BODY))
    assert not transport.reading
    server.exchanges[0].respond(200, b"{}")
    assert transport.reading


def test_a_large_answer_may_take_as_long_as_the_client_reads():
    server = Server()
    transport, connection = server.connect()
    connection.data_received(post())
    server.exchanges[0].respond(200, b"x" * (40 * MIB))
    for _ in range(300):
        transport.read(100 << 10)
        server.sweep()
    assert not transport.aborted
    for _ in range(29):
        server.sweep()
    assert not transport.aborted
    for _ in range(2):
        server.sweep()
    assert transport.aborted


def test_a_stream_may_be_read_more_slowly_than_it_grows():
    server = Server()
    transport, connection = server.connect()
    connection.data_received(post(b'{"stream":true}'))
    exchange = server.exchanges[0]
    exchange.start_stream()
    for _ in range(300):
        exchange.send(b"x" * 20_000)
        transport.read(10_000)
        server.sweep()
    assert connection.unsent_bytes > 2 * MIB
    assert not transport.aborted
    for _ in range(31):
        exchange.send(b"x" * 10_000)
        server.sweep()
    assert transport.aborted


def test_a_stream_that_outgrows_its_reader_is_cut():
    server = Server(max_buffer_bytes=MIB)
    transport, connection = server.connect()
    connection.data_received(post(b'{"stream":true}'))
    exchange = server.exchanges[0]
    exchange.start_stream()
    exchange.send(b"x" * (4 * MIB))  # one event: as large as it is
    for _ in range(3):
        transport.read(1000)
        server.sweep()
    assert not transport.aborted
    for _ in range(2):
        exchange.send(b"x" * 2000)
        transport.read(1000)
        server.sweep()
    assert transport.aborted


def test_a_small_answer_that_is_never_read_does_not_stay_for_ever():
    server = Server()
    transport, connection = server.connect()
    connection.data_received(post(headers=b"connection: close\r\n"))
    server.exchanges[0].respond(200, b"x" * 1000)
    assert transport.closing
    for _ in range(31):
        server.sweep()
    assert transport.aborted


def test_a_body_of_small_pieces_costs_what_it_holds():
    server = Server()
    _, connection = server.connect()
    connection.data_received(CHUNKED)
    pieces = b"2\r\nxx\r\n" * 10_000
    tracemalloc.start()
    for _ in range(50):
        connection.data_received(pieces)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 3 * MIB
    connection.data_received(b"0\r\n\r\n")
    assert json.dumps("x" * MIB)[1:1_000_001].encode() == server.exchanges[0].request.body
