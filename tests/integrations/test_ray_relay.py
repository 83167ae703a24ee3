"""Requests of the OpenAI API on their way to a server, and its options."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from firelane.errors import UsageError
from firelane_ray.relay import AnswerError, Relay
from firelane_ray.server_process import _line, options_of


class Broken(httpx.AsyncByteStream):
    def __init__(self, *parts: bytes) -> None:
        self._parts = parts

    async def __aiter__(self):
        for part in self._parts:
            yield part
        raise httpx.ReadError("gone")


def asked(answer: Any, *, stream: bool = False, headers: dict[str, str] | None = None) -> Any:
    """Send a request through the relay to a server with this answer; return what the relay gives."""

    async def scenario():
        relay = Relay("http://server", httpx.MockTransport(answer))
        try:
            if stream:
                return [event async for event in relay.stream("/p", {"stream": True}, headers or {})]
            return await relay.answer("/p", {"a": 1}, headers or {})
        finally:
            await relay.close()

    return asyncio.run(scenario())


def test_answer_and_headers() -> None:
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={"id": "x"})

    headers = {"X-Session-Affinity": "s", "Authorization": "secret"}
    assert asked(answer, headers=headers) == {"id": "x"}
    assert seen[0].url.path == "/p"
    assert json.loads(seen[0].content) == {"a": 1}
    assert seen[0].headers["x-session-affinity"] == "s"
    assert "authorization" not in seen[0].headers


def test_events() -> None:
    body = b': comment\n\ndata: {"a": 1}\n\ndata: [DONE]\n\n'
    events = asked(lambda _: httpx.Response(200, content=body), stream=True)
    assert events == ['data: {"a": 1}\n\n', "data: [DONE]\n\n"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("content", "says", "kind"),
    [
        (b'{"error": {"message": "no", "type": "invalid_request_error"}}', "no", "invalid_request_error"),
        (b'{"error": "no"}', '{"error": "no"}', "error"),
        (b"[]", r"\[\]", "error"),
        (b"", "status 418", "error"),
    ],
)
def test_refusals(stream, content, says, kind) -> None:
    with pytest.raises(AnswerError, match=says) as error:
        asked(lambda _: httpx.Response(418, content=content), stream=stream)
    assert (error.value.status, error.value.kind) == (418, kind)


@pytest.mark.parametrize("stream", [False, True])
def test_no_server(stream) -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(AnswerError, match="gone") as error:
        asked(refuse, stream=stream)
    assert error.value.status == 503


def test_a_stream_that_breaks_says_so() -> None:
    broken = Broken(b'data: {"a": 1}\n\n')
    events = asked(lambda _: httpx.Response(200, stream=broken), stream=True)
    assert events[0] == 'data: {"a": 1}\n\n'
    assert json.loads(events[1].removeprefix("data: "))["error"]["code"] == 503


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, []),
        ({"max_num_seqs": 8, "kv_cache_gib": 0.5}, ["--max-num-seqs", "8", "--kv-cache-gib", "0.5"]),
        ({"no_sandbox": True, "no_recovery": False, "threads": None}, ["--no-sandbox"]),
        ({"alias": ["a=b", "c=d"]}, ["--alias", "a=b", "--alias", "c=d"]),
    ],
)
def test_options(settings, options) -> None:
    assert options_of(settings) == options


def test_senseless_options() -> None:
    with pytest.raises(UsageError, match="engine_kwargs: sizes"):
        options_of({"sizes": {"a": 1}})


def test_the_log_is_read_on_behind_a_line_that_is_too_long() -> None:
    async def lines() -> list[str]:
        stream = asyncio.StreamReader(limit=64)
        for data in (b"first\n\n", b"x" * 200, b"\nlast\n"):
            stream.feed_data(data)
        stream.feed_eof()
        return [await _line(stream) for _ in range(3)]

    assert asyncio.run(lines()) == ["first", "last", ""]
