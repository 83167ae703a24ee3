"""Requests that another process answers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import Any

import pytest

from firelane.errors import EngineDeadError
from firelane.gateway.http.exchange import EVENT_STREAM, Request, Route
from firelane.gateway.http.relay import RequestRelay


class Exchange:
    """Notes what it is told."""

    id = "req-1"

    def __init__(self, request: Request) -> None:
        self.request, self.told = request, []
        self.started = self.gone = False
        self.on_gone = self.error_form = None
        self.extra_headers = b"x-ignored-fields: a\r\n"

    def respond(self, status, body, *, content_type, headers=b"") -> None:
        self.started = self.gone = True
        self.told.append((status, body, content_type, headers))

    def start_stream(self, content_type=EVENT_STREAM) -> None:
        self.started = True
        self.told.append(content_type)

    def send(self, data) -> None:
        self.told.append(data)

    async def drained(self) -> None:
        pass

    def end(self) -> None:
        self.gone = True
        self.told.append("end")

    def abort(self) -> None:
        self.told.append("abort")


class Scene:
    """The other process reads until it has `until`, then answers and closes."""

    def __init__(self, answer: bytes, until: bytes) -> None:
        self.answer, self.until, self.got = answer, until, b""
        self.lingers = False
        self.closed = asyncio.Event()
        routes = [Route("POST", "/own", lambda _: None), Route("POST", "/a", lambda _: None, owned=True)]
        self.kept, self.relayed = RequestRelay(self._connect).routes(routes, 100)
        self.tasks: list[asyncio.Task[None]] = []

    def _connect(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.tasks.append(asyncio.get_running_loop().create_task(self._serve(theirs)))
        return ours

    async def _serve(self, sock: socket.socket) -> None:
        reader, writer = await asyncio.open_unix_connection(sock=sock)
        while self.until not in self.got and (data := await reader.read(4096)):
            self.got += data
        if self.until in self.got:
            writer.write(self.answer)
            if self.lingers:
                await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        self.closed.set()

    async def ask(self, *pieces: bytes, method: bytes = b"POST", **headers: str) -> Exchange:
        request = Request()
        request.method, request.path, request.query = method, b"/a", b"x=1"
        request.headers = {name.encode(): value.encode() for name, value in headers.items()}
        assert self.relayed.open_body is not None
        request.sink = sink = self.relayed.open_body(request)
        for piece in pieces:
            busy = sink.write(piece)
            if busy is not None:
                await busy
        exchange: Any = Exchange(request)
        work = self.relayed.handle(exchange)
        assert work is not None
        await work
        return exchange


def run(work, answer: bytes, until: bytes = b"\r\n\r\n") -> None:
    async def scene() -> None:
        made = Scene(answer, until)
        await work(made)
        await asyncio.gather(*made.tasks)
        await asyncio.sleep(0)  # the relay's end closes

    asyncio.run(scene())


def test_bodies_go_in_pieces_and_answers_come_whole() -> None:
    answer = b"HTTP/1.1 201 Created\r\ncontent-type: text/a\r\ncontent-length: 2\r\nx-b: c\r\n"
    answer += b"x-request-id: other\r\naccess-control-allow-origin: *\r\n\r\nok"

    async def work(scene: Scene) -> None:
        exchange = await scene.ask(b"one", b"twotwo", authorization="k", te="trailers")
        assert exchange.told == [(201, b"ok", b"text/a", b"x-b: c\r\n")]
        head, _, body = scene.got.partition(b"\r\n\r\n")
        assert body == b"3\r\none\r\n6\r\ntwotwo\r\n0\r\n\r\n"
        lines = head.split(b"\r\n")
        assert lines[0] == b"POST /a?x=1 HTTP/1.1"
        assert {b"authorization: k", b"transfer-encoding: chunked", b"connection: close"} <= set(lines)
        assert not any(line.startswith(b"te:") for line in lines)
        assert b"x-request-id: " + exchange.request.headers[b"x-request-id"] in lines

    run(work, answer, b"0\r\n\r\n")


def test_a_request_without_a_body_says_so() -> None:
    async def work(scene: Scene) -> None:
        exchange = await scene.ask()
        assert b"content-length: 0\r\n" in scene.got
        assert exchange.told == [(200, b"", b"", b"")]

    run(work, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")


def test_streams_pass_as_they_come_and_interim_answers_do_not() -> None:
    answer = (
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    )
    answer += b"transfer-encoding: chunked\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n"

    async def work(scene: Scene) -> None:
        exchange = await scene.ask()
        assert exchange.told == [EVENT_STREAM, b"one", b"two", "end"]

    run(work, answer)


def test_lines_of_a_stream_s_head_pass_once() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    answer += b"cache-control: no-cache\r\nx-ignored-fields: b\r\nx-stream-id: 1\r\n"
    answer += b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n"

    async def work(scene: Scene) -> None:
        exchange = await scene.ask()
        assert exchange.extra_headers == b"x-ignored-fields: a\r\nx-stream-id: 1\r\n"

    run(work, answer)


@pytest.mark.parametrize("body", [b'{"stream":true}', b""])
def test_a_request_is_handed_on_when_its_body_was_read(body) -> None:
    async def work(scene: Scene) -> None:
        request = Request()
        request.method, request.path, request.query = b"POST", b"/a", b""
        exchange = Exchange(request)
        exchange.extra_headers += b"x-request-id: req-1\r\n"
        relay = RequestRelay(scene._connect)
        answered = asyncio.create_task(relay.forward(exchange, body))
        await asyncio.sleep(0)
        assert relay.open == 1
        await answered
        assert relay.open == 0
        assert exchange.told == [(200, b"ok", b"", b"x-ignored-fields: b\r\n")]
        assert exchange.extra_headers == b"x-request-id: req-1\r\n"
        head, _, sent = scene.got.partition(b"\r\n\r\n")
        assert b"x-request-id: req-1" in head.split(b"\r\n")
        assert sent == (b"f\r\n%b\r\n0\r\n\r\n" % body if body else b"")

    answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx-ignored-fields: b\r\n\r\nok"
    run(work, answer, b"true}\r\n0\r\n\r\n" if body else b"\r\n\r\n")


def test_a_head_is_answered_by_the_length_of_what_a_get_gives() -> None:
    async def work(scene: Scene) -> None:
        exchange = await scene.ask(method=b"HEAD")
        assert scene.got.startswith(b"GET /a")
        assert exchange.told == [(200, b"abc", b"", b"")]

    run(work, b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc")


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc", b"nonsense\r\n\r\n"]
)
def test_a_process_that_dies_is_an_error_that_passes(answer) -> None:
    async def work(scene: Scene) -> None:
        with pytest.raises(EngineDeadError, match="has gone"):
            await scene.ask()

    run(work, answer)


def test_a_stream_that_breaks_off_is_broken_off() -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: a/b\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n"

    async def work(scene: Scene) -> None:
        assert (await scene.ask()).told == [b"a/b", b"one", "abort"]

    run(work, answer)


def test_a_refusal_comes_before_the_body_has_gone() -> None:
    async def work(scene: Scene) -> None:
        scene.lingers = True
        exchange = await scene.ask(*[b"x" * 60_000] * 20)
        assert exchange.told[0][:2] == (413, b"no")

    run(work, b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno")


def test_a_client_that_leaves_ends_the_connection() -> None:
    async def work(scene: Scene) -> None:
        assert scene.relayed.open_body is not None
        request = Request()
        sink = scene.relayed.open_body(request)
        busy = sink.write(b"one")
        assert busy is not None
        sink.abandon()
        await busy
        await scene.closed.wait()

    run(work, b"", b"never")


def test_other_routes_stay_here() -> None:
    async def work(scene: Scene) -> None:
        assert (scene.kept.pattern, scene.kept.open_body) == ("/own", None)

    run(work, b"")
