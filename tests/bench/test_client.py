"""The load client reads any framing of an OpenAI stream, and tells a failure as such."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from firelane.bench.client import LoadClient, Outcome, Recording, read_outcome
from firelane.bench.workload import BenchRequest
from firelane.errors import UsageError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def event(text: str) -> bytes:
    return b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\n\n"


USAGE = (
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4, '
    b'"prompt_tokens_details": {"cached_tokens": 2}}}\n\n'
)
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def recording(pieces: list[bytes], *, error: str = "") -> Recording:
    """TokenTable that came one second apart, the first one second after the start."""
    made = Recording(start_s=10.0, error=error)
    for i, piece in enumerate(pieces):
        made.data += piece
        made.stamps.append(11.0 + i)
        made.ends.append(len(made.data))
    made.end_s = 11.0 + len(pieces)
    return made


def test_times_are_those_of_the_bytes() -> None:
    pieces = [
        OK + chunk(event("a")),
        chunk(event("b")) + chunk(event("c")),
        chunk(USAGE + DONE) + b"0\r\n\r\n",
    ]
    outcome = read_outcome(recording(pieces))
    assert outcome == Outcome(
        error="",
        prompt_tokens=3,
        output_tokens=4,
        cached_tokens=2,
        token_times_s=[1.0, 2.0, 2.0],
        total_s=4.0,
        start_s=10.0,
    )
    assert outcome.ttft_s == 1.0
    assert outcome.gaps_s == [1.0, 0.0]
    assert outcome.tpot_s == pytest.approx(1 / 3)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_any_split_of_the_bytes_gives_the_same_events(size: int) -> None:
    data = OK + chunk(event("a") + event("b")) + chunk(event("c") + USAGE + DONE) + b"0\r\n\r\n"
    outcome = read_outcome(recording([data[i : i + size] for i in range(0, len(data), size)]))
    assert outcome.error == ""
    assert len(outcome.token_times_s) == 3
    assert outcome.token_times_s == sorted(outcome.token_times_s)


@pytest.mark.parametrize("name", ["content", "reasoning_content", "reasoning"])
def test_a_chat_is_timed_from_its_first_text(name: str) -> None:
    deltas = [{"role": "assistant", "content": ""}, {name: "a"}, {name: "b"}, {}]
    pieces = [chunk(f"data: {json.dumps({'choices': [{'delta': d}]})}\n\n".encode()) for d in deltas]
    outcome = read_outcome(recording([OK, *pieces, chunk(USAGE + DONE) + b"0\r\n\r\n"]))
    assert (outcome.error, outcome.token_times_s) == ("", [3.0, 4.0])


def test_a_body_without_chunks_is_read_too() -> None:
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
    outcome = read_outcome(recording([head + event("a"), event("b") + USAGE + DONE]))
    assert outcome.error == ""
    assert outcome.output_tokens == 4


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ([b"HTTP/1.1 429 Too Many Requests\r\n\r\nfull"], "HTTP 429: full"),
        ([], "without an answer"),
        ([OK + chunk(event("a"))], "before it was complete"),
        ([OK + chunk(b'data: {"error": "dead"}\n\n') + b"0\r\n\r\n"], "error in the stream: dead"),
        ([OK + chunk(b"data: hello\n\n") + b"0\r\n\r\n"], "not an OpenAI stream"),
    ],
    ids=["status", "nothing", "cut", "error-event", "not-json"],
)
def test_failures_are_told(pieces: list[bytes], message: str) -> None:
    assert message in read_outcome(recording(pieces)).error


def test_a_lost_connection_is_told() -> None:
    assert read_outcome(recording([OK], error="connection lost: reset")).error == "connection lost: reset"


def serve_once(answer: bytes, run: Callable[[int], asyncio.Future[Recording]]) -> tuple[Recording, bytes]:
    """Serve `answer` to one request; returns the client's recording and the request's bytes."""
    seen = bytearray()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
        seen.extend(head + await reader.readexactly(length))
        writer.write(answer)
        await writer.drain()
        writer.close()

    async def main() -> Recording:
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        async with server:
            return await run(server.sockets[0].getsockname()[1])

    return asyncio.run(main()), bytes(seen)


def test_over_a_real_socket() -> None:
    request = BenchRequest(prompt=[5, 6, 7], output_tokens=4)

    async def complete(port: int) -> Recording:
        client = LoadClient(f"http://127.0.0.1:{port}/v1", "m", api_key="k")
        return await client.complete(request)

    recorded, seen = serve_once(OK + chunk(event("a") + USAGE + DONE) + b"0\r\n\r\n", complete)
    assert read_outcome(recorded).output_tokens == 4
    head, _, body = seen.partition(b"\r\n\r\n")
    assert head.startswith(b"POST /v1/completions HTTP/1.1\r\n")
    assert b"Authorization: Bearer k" in head
    sent = json.loads(body)
    assert (sent["prompt"], sent["max_tokens"], sent["stream"]) == ([5, 6, 7], 4, True)
    assert sent["ignore_eos"] is True


def test_a_chat_has_one_message() -> None:
    client = LoadClient("http://x:1/base/v1", "m", extra={"top_p": 1}, endpoint="/v1/chat/completions")
    head, _, body = client.encode(BenchRequest(prompt="hello", output_tokens=4)).partition(b"\r\n\r\n")
    assert head.startswith(b"POST /base/v1/chat/completions HTTP/1.1\r\n")
    assert json.loads(body) == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_completion_tokens": 4,
        "stream": True,
        "stream_options": {"include_usage": True},
        "top_p": 1,
    }


def test_no_server_is_an_error_of_the_request() -> None:
    client = LoadClient("http://127.0.0.1:1", "m")
    recorded = asyncio.run(client.complete(BenchRequest(prompt="x", output_tokens=1)))
    assert "127.0.0.1:1" in read_outcome(recorded).error


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://x", "http://"])
def test_bad_urls_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--url"):
        LoadClient(url, "m")
