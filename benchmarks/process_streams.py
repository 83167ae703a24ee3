"""Streams that begin again as they end, and compare each answer with one that was recorded undisturbed."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any

TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {"at": {"type": "string"}}}},
}
HEAD = (
    b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n"
)
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "maximum": 999}, "word": {"type": "string", "maxLength": 20}},
    "required": ["n", "word"],
    "additionalProperties": False,
}
ENDS_WITHIN_S = 600.0
"""The time for requests that are on their way when the faults are over."""
LONG = "You think of a place with a river, a hill and a small wood behind it. " * 6


@dataclass
class Totals:
    """Counts of all streams. broken: lost with their gateway process, and asked again."""

    requests: int = 0
    different: int = 0
    broken: int = 0
    pause_s: float = 0.0
    errors: list[str] = field(default_factory=list[str])


class BrokenError(Exception):
    """The connection ended before the answer did."""


Ask = Callable[[dict[str, Any], Totals], Awaitable[str]]
"""The text of an answer. Raises BrokenError, and ValueError with an error of the server."""


def body_of(index: int, tokens: int, turn: int) -> dict[str, Any]:
    """A chat of this stream; turn: makes the text of its schema a new one."""
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": f"Say something of {index} and of {index * index}."}],
        "max_tokens": tokens,
        "seed": index,
        "temperature": (0.0, 0.9)[index % 2],
        "stream": True,
    }
    if index % 4 == 1:
        schema = {**SCHEMA, "title": f"turn {turn} of {index}"}
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    elif index % 4 == 2:
        body["tools"] = [TOOL]
    return body


async def ask(port: int, body: dict[str, Any], totals: Totals) -> str:
    """Ask one server for a stream, see Ask."""
    last_s = time.perf_counter()
    texts: list[str] = []
    try:
        status, reader, writer = await _sent(port, body)
        while line := await reader.readline():
            now_s = time.perf_counter()
            totals.pause_s, last_s = max(totals.pause_s, now_s - last_s), now_s
            if b" 200 " not in status and line.startswith(b"{"):
                raise ValueError(line.decode())
            if line.startswith(b"data: [DONE]"):
                writer.close()
                return "".join(texts)
            if line.startswith(b"data: {"):
                event = json.loads(line[6:])
                if "error" in event:
                    raise ValueError(line.decode())
                texts += [json.dumps(_told(choice["delta"])) for choice in event["choices"]]
    except OSError as error:
        raise BrokenError(str(error)) from error
    raise BrokenError("ended")


async def ask_both(prefill: int, decode: int, body: dict[str, Any], totals: Totals) -> str:
    """Ask one server for the pages of a prompt, and another one for the answer, which has the pages from it:
    what a router does. No cache has them yet. See Ask."""
    told_first = {"role": "system", "content": LONG}
    body = {**body, "messages": [told_first, *body["messages"]], "cache_salt": token_hex(8)}
    leg = {**body, "stream": False, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    began_s = time.perf_counter()
    try:
        status, reader, writer = await _sent(prefill, leg)
        told = (await reader.read()).rpartition(b"\r\n\r\n")[2]
        writer.close()
    except OSError as error:
        raise BrokenError(str(error)) from error
    totals.pause_s = max(totals.pause_s, time.perf_counter() - began_s)
    if b" 200 " not in status:
        raise ValueError(told.decode()) if told else BrokenError("ended")
    try:
        params = json.loads(told)["kv_transfer_params"]
    except ValueError as error:
        raise BrokenError("cut off") from error
    return await ask(decode, {**body, "kv_transfer_params": params}, totals)


async def _sent(port: int, body: dict[str, Any]) -> tuple[bytes, asyncio.StreamReader, asyncio.StreamWriter]:
    """The status line of an answer, and the connection behind it. Raises OSError."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
    writer.write(HEAD % len(data) + data)
    return await reader.readline(), reader, writer


def _told(delta: dict[str, Any]) -> list[str]:
    calls = delta.get("tool_calls") or []
    return [delta.get("content") or "", *(call["function"].get("arguments", "") for call in calls)]


def joined(texts: str) -> str:
    """Without where the pieces were cut."""
    return texts.replace('"]["', "").replace('[""]', "")


class Load:
    """So many streams of answers of so many tokens."""

    def __init__(self, ask: Ask, streams: int, tokens: int) -> None:
        self.totals, self.streams = Totals(), streams
        self._ask, self._tokens = ask, tokens
        self._reference: list[str] = []
        self._running: list[asyncio.Future[None]] = []
        self._stopping = False

    async def start(self) -> None:
        """Record the answers, and begin."""
        gate = asyncio.Semaphore(16)

        async def one(index: int) -> str:
            async with gate:
                return joined(await self._ask(body_of(index, self._tokens, 0), Totals()))

        self._reference = list(await asyncio.gather(*map(one, range(self.streams))))
        self._running = [asyncio.ensure_future(self._stream(i)) for i in range(self.streams)]

    async def end(self) -> None:
        """Returns when each request has ended. Raises TimeoutError."""
        self._stopping = True
        await asyncio.wait_for(asyncio.gather(*self._running), ENDS_WITHIN_S)

    async def _stream(self, index: int) -> None:
        turn = 0
        while not self._stopping:
            turn += 1
            await self._one(index, body_of(index, self._tokens, turn))
            self.totals.requests += 1

    async def _one(self, index: int, body: dict[str, Any]) -> None:
        while True:
            try:
                told = joined(await self._ask(body, self.totals))
            except BrokenError:
                self.totals.broken += 1
                await asyncio.sleep(0.1)
                continue
            except ValueError as error:
                self.totals.errors.append(f"{index}: {error}")
            else:
                self.totals.different += told != self._reference[index]
            return
