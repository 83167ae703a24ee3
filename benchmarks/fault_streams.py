"""Clients that ask for the same few prompts over and over while something goes wrong with the servers, and
compare each answer with the one that they got before."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import msgspec

PROMPTS = 8
SILENCE_S = 180.0
"""Without a byte, after which an answer has failed: a server that waits for its engines says so."""
LONGEST_S = 400.0
"""After which an answer has failed, whatever still comes."""
Ask = Callable[[httpx.Client, int, str], Iterator[str]]
"""Pieces of the answer to the prompt of this number, with this salt of the cache. Raises httpx.HTTPError, and
RuntimeError for an error that the server sends."""


class Choice(msgspec.Struct):
    text: str


class Event(msgspec.Struct):
    choices: list[Choice] = []
    error: dict[str, Any] | None = None


class Streams:
    """Threads, each with one request at a time. expected: answers without faults. ended: requests by how."""

    def __init__(self, ask: Ask, count: int) -> None:
        """Returns when the answers without faults are there."""
        self._ask = ask
        self.ended = Counter[str]()
        self.failures: list[str] = []
        self._stops = threading.Event()
        self._news = [0] * count
        self._salts = 0
        with httpx.Client(timeout=SILENCE_S) as client:
            self.expected = ["".join(ask(client, number, "undisturbed")) for number in range(PROMPTS)]
        self._threads = [threading.Thread(target=self._run, args=(i,), daemon=True) for i in range(count)]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Returns when each request has ended."""
        self._stops.set()
        for thread in self._threads:
            thread.join()

    def wait_for_news(self, pieces: int) -> None:
        """Return when each stream has had so many more pieces. Raises TimeoutError."""
        before, ends_s = list(self._news), time.monotonic() + LONGEST_S
        while any(now - then < pieces for now, then in zip(self._news, before, strict=True)):
            if time.monotonic() > ends_s:
                raise TimeoutError("a stream has no news")
            time.sleep(0.05)

    def _run(self, place: int) -> None:
        number = place
        with httpx.Client(timeout=SILENCE_S) as client:
            while not self._stops.is_set():
                number = (number + 1) % PROMPTS
                try:
                    self._one(client, place, number)
                except (httpx.HTTPError, RuntimeError) as error:
                    self.ended["failed"] += 1
                    self.failures.append(f"{time.strftime('%H:%M:%S')} {type(error).__name__}: {error}")

    def _one(self, client: httpx.Client, place: int, number: int) -> None:
        """With a salt of its own, so that no cache has its pages."""
        self._salts += 1
        began_s, parts = time.monotonic(), list[str]()
        for part in self._ask(client, number, f"{place}-{self._salts}"):
            parts.append(part)
            self._news[place] += 1
            if time.monotonic() - began_s > LONGEST_S:
                raise RuntimeError(f"no end after {LONGEST_S:g} s")
        same = "".join(parts) == self.expected[number]
        self.ended["same" if same else "other bytes"] += 1
        if not same:
            text = "".join(parts)
            self.failures.append(f"prompt {number}: {len(text)} of {len(self.expected[number])} characters")


def body(model: str, number: int, salt: str, tokens: int) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": f"# {number}\n" + "def f(x):\n    return x + 1\n" * 40,
        "max_tokens": tokens,
        "seed": number,
        "temperature": 0.8,
        "ignore_eos": True,
        "cache_salt": salt,
    }


def streamed(client: httpx.Client, url: str, request: dict[str, Any]) -> Iterator[str]:
    """Texts of a completion, as they come."""
    ended = False
    with client.stream("POST", f"{url}/v1/completions", json={**request, "stream": True}) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            ended = ended or line == "data: [DONE]"
            if line.startswith("data: {"):
                event = msgspec.json.decode(line[6:], type=Event)
                if event.error is not None:
                    raise RuntimeError(str(event.error.get("message")))
                yield from (choice.text for choice in event.choices)
    if not ended:
        raise RuntimeError("the stream has no end")
