"""A load client that costs little: it stamps the bytes of streamed answers, and reads them afterwards."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import time
import urllib.request
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

import msgspec

from firelane.bench.workload import BenchRequest
from firelane.errors import MachineError, UsageError

DEFAULT_EXTRA = {"ignore_eos": True, "temperature": 0}
CHAT = "chat/completions"
"""The end of an endpoint that takes messages."""
TEXTS = ("content", "reasoning_content", "reasoning")
"""Fields of a chat's delta that carry text."""


@dataclass(kw_only=True)
class Recording:
    """One answer as it came. `ends[i]` is how many bytes had come at time `stamps[i]`; times in seconds."""

    start_s: float
    end_s: float = 0.0
    data: bytearray = field(default_factory=bytearray)
    stamps: list[float] = field(default_factory=list[float])
    ends: list[int] = field(default_factory=list[int])
    error: str = ""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of one request. `error` is "" when it succeeded; the rest is meaningful only then.

    `start_s`: by a clock of its own. `token_times_s`: arrival of each event that carried text (the answer's
    end if none did), from the start. `total_s`: until the connection's end.
    """

    error: str
    start_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    token_times_s: list[float] = field(default_factory=list[float])
    total_s: float = 0.0

    @property
    def ttft_s(self) -> float:
        return self.token_times_s[0]

    @property
    def gaps_s(self) -> list[float]:
        """Inter-token latencies, between events."""
        times = self.token_times_s
        return [b - a for a, b in itertools.pairwise(times)]

    @property
    def tpot_s(self) -> float:
        """Time per output token after the first."""
        return (self.e2el_s - self.ttft_s) / max(1, self.output_tokens - 1)

    @property
    def e2el_s(self) -> float:
        """End-to-end latency: until the last token."""
        return self.token_times_s[-1]


class LoadClient:
    """Sends streamed completions, or chats of one message, to an OpenAI-compatible server, one connection a
    request.

    `url` may end in /v1; `endpoint` is a path below it. Raises UsageError for what cannot be used.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str = "",
        extra: dict[str, Any] | None = None,
        endpoint: str = "/v1/completions",
    ) -> None:
        parts = _split(url)
        self._host, self._tls = parts.hostname or "", parts.scheme == "https"
        self._port = parts.port or (443 if self._tls else 80)
        self._path = parts.path + endpoint
        self._is_chat = endpoint.endswith(CHAT)
        self._model = model
        self._key = f"Authorization: Bearer {api_key}\r\n" if api_key else ""
        self._extra = extra if extra is not None else DEFAULT_EXTRA

    async def complete(self, request: BenchRequest) -> Recording:
        """One request. Failures to connect or read are told by the recording's `error`."""
        recording = Recording(start_s=time.perf_counter())
        loop = asyncio.get_running_loop()
        tls = ssl.create_default_context() if self._tls else None
        transport = None
        try:
            transport, receiver = await loop.create_connection(
                lambda: _Receiver(recording, loop), self._host, self._port, ssl=tls
            )
            transport.write(self.encode(request))
            await receiver.done
        except OSError as error:
            recording.error = f"{self._host}:{self._port}: {error}"
        finally:
            if transport is not None:
                transport.close()
        recording.end_s = time.perf_counter()
        return recording

    def encode(self, request: BenchRequest) -> bytes:
        """The bytes of the HTTP request."""
        body = msgspec.json.encode(
            {
                "model": self._model,
                **self._asked(request),
                "stream": True,
                "stream_options": {"include_usage": True},
                **self._extra,
            }
        )
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n{self._key}"
            "Connection: close\r\n\r\n"
        )
        return head.encode() + body

    def _asked(self, request: BenchRequest) -> dict[str, Any]:
        if not self._is_chat:
            return {"prompt": request.prompt, "max_tokens": request.output_tokens}
        messages = [{"role": "user", "content": request.prompt}]
        return {"messages": messages, "max_completion_tokens": request.output_tokens}


def _split(url: str) -> SplitResult:
    """The parts of a server's URL, the path without /v1."""
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts._replace(path=parts.path.rstrip("/").removesuffix("/v1"))
    except ValueError:  # a port that is no number
        pass
    raise UsageError(f"--url {url}: give http://HOST:PORT or https://HOST:PORT")


def first_model(url: str, *, api_key: str = "") -> str:
    """The name of the first model that the server lists. Raises MachineError when it does not answer so, and
    UsageError for a URL that cannot be used."""
    address = f"{_split(url).geturl()}/v1/models"
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=30) as reply:
            return msgspec.json.decode(reply.read())["data"][0]["id"]
    except (OSError, ValueError, msgspec.DecodeError, LookupError, TypeError) as error:
        raise MachineError(
            f"{address} did not list a model: {error}; is the server running there?"
        ) from error


class _Receiver(asyncio.Protocol):
    """Collects bytes until the server closes the connection."""

    def __init__(self, recording: Recording, loop: asyncio.AbstractEventLoop) -> None:
        self._recording = recording
        self.done: asyncio.Future[None] = loop.create_future()

    def data_received(self, data: bytes) -> None:
        recording = self._recording
        recording.data += data
        recording.stamps.append(time.perf_counter())
        recording.ends.append(len(recording.data))

    def connection_lost(self, exc: Exception | None) -> None:
        if exc is not None:
            self._recording.error = f"connection lost: {exc}"
        if not self.done.done():
            self.done.set_result(None)


def read_outcome(recording: Recording) -> Outcome:
    """Decode a recorded answer. What is not a complete stream with usage becomes the outcome's `error`."""
    outcome = _outcome(recording)
    return replace(outcome, start_s=recording.start_s)


def _outcome(recording: Recording) -> Outcome:
    if recording.error:
        return Outcome(error=recording.error)
    head, _, _ = bytes(recording.data).partition(b"\r\n\r\n")
    status = head.split(b"\r\n")[0].split(b" ")
    if len(status) < 2 or not status[1].isdigit():
        return Outcome(error="the server closed the connection without an answer")
    body, positions = _body(bytes(recording.data), len(head) + 4, chunked=b"chunked" in head.lower())
    if status[1] != b"200":
        return Outcome(error=f"HTTP {status[1].decode()}: {body[:200].decode(errors='replace')}")
    try:
        return _read_events(recording, body, positions)
    except (msgspec.DecodeError, KeyError, IndexError, TypeError) as error:
        return Outcome(error=f"not an OpenAI stream: {type(error).__name__} {error}")


def _body(data: bytes, start: int, *, chunked: bool) -> tuple[bytes, list[tuple[int, int]]]:
    """The body without chunk framing, and (end in the body, end in `data`) of each chunk."""
    if not chunked:
        return data[start:], [(len(data) - start, len(data))]
    parts: list[bytes] = []
    positions: list[tuple[int, int]] = []
    length = 0
    while (line_end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:line_end].split(b";")[0] or b"0", 16)
        if size == 0:
            break
        start = line_end + 2 + size
        parts.append(data[line_end + 2 : start])
        length += len(parts[-1])
        positions.append((length, start))
        start += 2
    return b"".join(parts), positions


def _read_events(recording: Recording, body: bytes, positions: list[tuple[int, int]]) -> Outcome:
    ends = [end for end, _ in positions]
    times: list[float] = []
    usage: dict[str, Any] = {}
    position, finished = 0, False
    for block in body.split(b"\n\n"):
        position += len(block) + 2
        payload = block.strip().removeprefix(b"data:").strip()
        if payload == b"[DONE]":
            finished = True
        elif payload:
            event = msgspec.json.decode(payload)
            if "error" in event:
                return Outcome(error=f"error in the stream: {event['error']}")
            usage = event.get("usage") or usage
            if event.get("choices") and _carries_text(event["choices"][0]):
                raw = positions[min(bisect_left(ends, position), len(ends) - 1)][1]
                came = recording.stamps[min(bisect_left(recording.ends, raw), len(recording.stamps) - 1)]
                times.append(came - recording.start_s)
    if not finished:
        return Outcome(error="the stream ended before it was complete")
    details = usage.get("prompt_tokens_details") or {}
    return Outcome(
        error="",
        prompt_tokens=usage.get("prompt_tokens", 0),
        output_tokens=usage.get("completion_tokens", len(times)),
        cached_tokens=details.get("cached_tokens", 0),
        token_times_s=times or [recording.end_s - recording.start_s],
        total_s=recording.end_s - recording.start_s,
    )


def _carries_text(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta") or {}
    return bool(choice.get("text")) or any(delta.get(name) for name in TEXTS)
