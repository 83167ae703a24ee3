"""Readers of kept streams, and a service whose engine waits for the test."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
RESUME = {"x-stream-resume": "true"}


class Reader:
    """A client that reads events one at a time, comments left out."""

    def __init__(self, answer: httpx.Response) -> None:
        self.answer = answer
        self._pieces = answer.iter_raw()
        self._buffer = b""

    @property
    def id(self) -> str:
        return self.answer.headers["x-stream-id"]

    def events(self) -> Iterator[bytes]:
        while True:
            while b"\n\n" in self._buffer:
                event, _, self._buffer = self._buffer.partition(b"\n\n")
                if not event.startswith(b":"):
                    yield event + b"\n\n"
            piece = next(self._pieces, b"")
            if not piece:
                return
            self._buffer += piece

    def take(self, count: int) -> list[bytes]:
        found = self.events()
        return [next(found) for _ in range(count)]

    def rest(self) -> bytes:
        return b"".join(self.events())


@contextmanager
def begin(service: Any, path: str = CHAT, body: Any = HI, **headers: str) -> Iterator[Reader]:
    with service.http.stream("POST", path, json=body, headers={**RESUME, **headers}) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        yield Reader(answer)


@contextmanager
def follow(
    service: Any, stream_id: str, path: str = CHAT, headers: Any = None, **query: Any
) -> Iterator[Reader]:
    query = {"stream": "true", **query}
    with service.http.stream("GET", f"{path}/{stream_id}", params=query, headers=headers) as answer:
        if answer.status_code != 200:
            answer.read()
        assert answer.status_code == 200, answer.text
        yield Reader(answer)


def read(service: Any, stream_id: str, path: str = CHAT, headers: Any = None, **query: Any) -> httpx.Response:
    query = {"stream": "true", **query}
    return service.http.get(f"{path}/{stream_id}", params=query, headers=headers)


def number(event: bytes) -> int:
    """The event's number, by its `id:` line."""
    return int(re.match(rb"id: (\d+)\n", event)[1])


def steps(service: Any, count: int) -> None:
    for _ in range(count):
        service.run(service.engine.step)


def go_on(service: Any) -> None:
    service.engine.held = False
    service.run(service.engine.step_on)


def logs(service: Any) -> Any:
    return service.gateway.services.streams.logs
