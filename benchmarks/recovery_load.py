"""Load of recovery.py: streams of fixed requests that begin again as they end, each compared with its answer
of before."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec

EVENT = re.compile(rb"data: (\{.*?\})\n\n", re.DOTALL)
PROMPT_TOKENS = 48
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.2},
    {"temperature": 1.0, "logprobs": 1},
)


class Choice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class Event(msgspec.Struct):
    choices: list[Choice] = []
    error: msgspec.Raw | None = None


@dataclass
class Answer:
    """parts: text and log-probabilities, in order. last_s: of the last event. longest_s: between two events,
    since it began or was set back."""

    parts: list[bytes] = field(default_factory=list)
    error: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0

    @property
    def content(self) -> bytes:
        return b"".join(self.parts)


def spec_of(index: int, max_tokens: int, vocabulary: range) -> dict[str, Any]:
    draw = random.Random(index)
    return {
        "prompt": draw.choices(vocabulary, k=PROMPT_TOKENS),
        "max_tokens": max_tokens,
        "seed": index,
        "ignore_eos": True,
        "stream": True,
        **KINDS[index % len(KINDS)],
    }


async def ask(port: int, body: dict[str, Any], answer: Answer | None = None) -> Answer:
    """One streamed completion; fills in `answer` as it comes."""
    data, answer = json.dumps(body).encode(), answer or Answer()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    head = (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
    )
    writer.write(head % len(data) + data)
    began_s = time.perf_counter()
    buffer = b""
    while piece := await reader.read(1 << 16):
        now_s = time.perf_counter()
        buffer += piece
        end = 0
        for match in EVENT.finditer(buffer):
            end = match.end()
            if not answer.last_s:
                answer.first_s = now_s - began_s
            elif now_s - answer.last_s > answer.longest_s:
                answer.longest_s = now_s - answer.last_s
            answer.last_s = now_s
            take(answer, match[1])
        if end:
            buffer = buffer[end:]
    writer.close()
    if b"[DONE]" not in buffer and not answer.error:
        answer.error = f"broken off: {buffer[-200:]!r}"
    return answer


def take(answer: Answer, data: bytes) -> None:
    event = msgspec.json.decode(data, type=Event)
    if event.error is not None:
        answer.error = bytes(event.error).decode()
    for choice in event.choices:
        answer.parts += [choice.text.encode(), bytes(choice.logprobs)]


class Load:
    """Keeps `streams` requests going until it is stopped; compares each answer with its reference."""

    def __init__(self, port: int, specs: list[dict[str, Any]], reference: list[bytes]) -> None:
        self._port, self._specs, self._reference = port, specs, reference
        self._stopping = False
        self.requests = self.different = 0
        self.errors: list[str] = []
        self._ended_longest_s = 0.0
        self._live: dict[int, Answer] = {}
        self._tasks = [asyncio.ensure_future(self._stream(i)) for i in range(len(specs))]

    async def stop(self) -> None:
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def heard(self) -> None:
        """Until each stream has had an event since now."""
        now_s = time.perf_counter()
        while any(answer.last_s < now_s for answer in self._live.values()):
            await asyncio.sleep(0.05)

    def mark(self) -> None:
        """Pauses count from now."""
        self._ended_longest_s = 0.0
        for answer in self._live.values():
            answer.longest_s = 0.0

    @property
    def tokens(self) -> int:
        """The tokens of all streams, prompts included."""
        return sum(PROMPT_TOKENS + len(answer.parts) // 2 for answer in self._live.values())

    @property
    def longest_s(self) -> float:
        return max([self._ended_longest_s, *(answer.longest_s for answer in self._live.values())])

    async def _stream(self, index: int) -> None:
        while not self._stopping:
            answer = self._live[index] = Answer()
            await ask(self._port, self._specs[index], answer)
            del self._live[index]
            self.requests += 1
            self._ended_longest_s = max(self._ended_longest_s, answer.longest_s)
            if answer.error:
                self.errors.append(answer.error)
            elif answer.content != self._reference[index]:
                self.different += 1
