"""Streams that are cut and read on, again and again: bytes that are lost, doubled or other ones.

    python benchmarks/streams_back.py [--cuts 1000] [--streams 6] [--tokens 300] [--gateways 1] [--kills 0]
        [--backend cpu|null] [--api chat ...]

A real server on the embedded model. Each stream has two readers: one that is never cut, and one whose
connection is closed after a random number of bytes, also within an event, and which comes back on a new one
with the number of the last whole event, by `starting_after` and by `Last-Event-ID` in turns. Streams begin
anew until there were so many cuts of each API. What the second reader has put together is compared with the
first one's bytes; its text with an answer to the same request in one piece, which nobody cut. Events are lost
where a number is missing, doubled where one comes twice. --kills: kill -9 of the engine, so many times over
the run of each API, while the streams go on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from firelane.bench.server import ServerProcess, descendants

TALK = [{"role": "user", "content": "Tell me a story about a lantern."}]
PATHS = {
    "chat": ("/v1/chat/completions", {"messages": TALK}),
    "completions": ("/v1/completions", {"prompt": "Once upon a time"}),
    "messages": ("/v1/messages", {"messages": TALK}),
}
MOST_BYTES = 3000
"""Bytes that a reader takes before it is cut, at most."""
NUMBER = re.compile(rb"^id: (\d+)\n")
AWAY = {"x-stream-resume": "600"}


@dataclass(kw_only=True)
class Tally:
    """Figures of one API. within: cuts within an event; live: returns while the stream was being made. lost,
    doubled: bytes. differ: streams whose bytes are not those of the reader that was not cut. back_s: from a
    reader's return to its first byte.
    """

    streams: int = 0
    cuts: int = 0
    within: int = 0
    live: int = 0
    bytes_read: int = 0
    lost: int = 0
    doubled: int = 0
    differ: int = 0
    other_texts: int = 0
    failed: int = 0
    kills: int = 0
    back_s: list[float] = field(default_factory=list[float])

    def row(self, api: str) -> str:
        waits = sorted(1e3 * one for one in self.back_s)
        times = [f"{median(waits):.1f}", f"{waits[int(0.99 * (len(waits) - 1))]:.1f}"] if waits else ["", ""]
        counts = (self.lost, self.doubled, self.differ, self.other_texts, self.failed, self.kills)
        cells = [
            api,
            self.streams,
            self.cuts,
            self.within,
            self.live,
            f"{self.bytes_read:,}",
            *counts,
            *times,
        ]
        return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    *("API", "streams", "cuts", "within an event", "returns to a live stream", "bytes", "lost", "doubled"),
    *("streams that differ", "other texts", "failed", "kills", "first byte again, median ms", "99% ms"),
)


class Events:
    """Whole events of a stream, comments left out."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.rest = b""

    def add(self, data: bytes) -> None:
        self.rest += data
        *whole, self.rest = self.rest.split(b"\n\n")
        self.events += [one + b"\n\n" for one in whole if not one.startswith(b":")]

    def cut(self) -> bool:
        """Forget the part of an event that has come. True where there was one."""
        had, self.rest = bool(self.rest), b""
        return had

    @property
    def numbers(self) -> list[int]:
        return [int(match[1]) for one in self.events if (match := NUMBER.match(one))]


class Scene:
    def __init__(self, server: ServerProcess, client: httpx.AsyncClient, tokens: int, seed: int) -> None:
        self.server, self.client, self.tokens = server, client, tokens
        self.random = random.Random(seed)

    def body(self, api: str, seed: int) -> dict[str, Any]:
        return {
            **PATHS[api][1],
            "max_tokens": self.tokens,
            "seed": seed,
            "temperature": 1,
            "ignore_eos": True,
        }

    async def plain(self, api: str, seed: int) -> str:
        """Text of the answer in one piece."""
        answer = await self.client.post(PATHS[api][0], json=self.body(api, seed))
        answer.raise_for_status()
        return text_of(answer.json())

    @asynccontextmanager
    async def begin(self, api: str, seed: int) -> AsyncIterator[httpx.Response]:
        body = {**self.body(api, seed), "stream": True}
        async with self.client.stream("POST", PATHS[api][0], json=body, headers=AWAY) as answer:
            yield answer

    def follow(self, api: str, stream_id: str, last: int, turn: int) -> Any:
        """A reader of what follows event `last`; -1: of all."""
        query, headers = {"stream": "true"}, dict[str, str]()
        if last >= 0 and turn % 2:
            headers["last-event-id"] = str(last)
        elif last >= 0:
            query["starting_after"] = str(last)
        return self.client.stream("GET", f"{PATHS[api][0]}/{stream_id}", params=query, headers=headers)

    async def witness(self, api: str, stream_id: str) -> bytes:
        """The bytes as one reader has them that nobody cuts."""
        seen = Events()
        async with self.follow(api, stream_id, -1, 0) as answer:
            async for data in answer.aiter_raw():
                seen.add(data)
        return b"".join(seen.events)

    async def one(self, api: str, seed: int, tally: Tally) -> None:
        text = await self.plain(api, seed)
        seen, ended, turn = Events(), False, 0
        async with self.begin(api, seed) as answer:
            answer.raise_for_status()
            stream_id = answer.headers["x-stream-id"]
            whole = asyncio.create_task(self.witness(api, stream_id))
            ended = await self.take(answer, seen, tally)
        while not ended:
            turn += 1
            tally.live += not whole.done()
            last = seen.numbers[-1] if seen.events else -1
            began_s = time.perf_counter()
            async with self.follow(api, stream_id, last, turn) as answer:
                answer.raise_for_status()
                ended = await self.take(answer, seen, tally, began_s)
        compare(tally, seen, await whole, text)

    async def take(
        self, answer: httpx.Response, seen: Events, tally: Tally, began_s: float | None = None
    ) -> bool:
        """Read until the cut. True where the stream has ended before."""
        left = self.random.randint(1, MOST_BYTES)
        async for data in answer.aiter_raw():
            if began_s is not None:
                tally.back_s.append(time.perf_counter() - began_s)
                began_s = None
            tally.bytes_read += len(data[:left])
            seen.add(data[:left])
            left -= len(data)
            if left <= 0:
                tally.cuts += 1
                tally.within += seen.cut()
                return False
        return True


def compare(tally: Tally, seen: Events, whole: bytes, text: str) -> None:
    numbers = seen.numbers
    known = set(numbers)
    tally.streams += 1
    once = dict(zip(numbers, seen.events, strict=True))
    tally.doubled += sum(map(len, seen.events)) - sum(map(len, once.values()))
    tally.lost += sum(len(one) + 2 for n, one in enumerate(whole.split(b"\n\n")[:-1]) if n not in known)
    tally.differ += b"".join(seen.events) != whole
    chunks = [json.loads(one) for one in payloads(whole)]
    tally.failed += any("error" in chunk for chunk in chunks)
    tally.other_texts += "".join(map(text_of, chunks)) != text


def payloads(whole: bytes) -> Iterator[bytes]:
    for event in whole.split(b"\n\n"):
        data = event.rpartition(b"data: ")[2]
        if data.startswith(b"{"):
            yield data


def text_of(value: dict[str, Any]) -> str:
    """The text of an answer in one piece, or what a chunk adds to it."""
    if "choices" in value:
        parts = [one.get("message") or one.get("delta") or one for one in value["choices"]]
        return "".join(str(part.get("content") or part.get("text") or "") for part in parts)
    if value.get("type") == "message":
        return "".join(str(block.get("text", "")) for block in value["content"])
    delta = value.get("delta")
    return str(delta.get("text") or "") if isinstance(delta, dict) else ""


async def run(scene: Scene, api: str, cuts: int, streams: int) -> Tally:
    tally, seeds = Tally(), iter(range(1, 1 << 30))

    async def again() -> None:
        while tally.cuts < cuts:
            await scene.one(api, next(seeds), tally)

    async with asyncio.TaskGroup() as group:
        for _ in range(streams):
            group.create_task(again())
    return tally


async def kill_engines(scene: Scene, tally_of: list[int], every_s: float, count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(every_s)
        for pid in engines(scene.server):
            os.kill(pid, signal.SIGKILL)
        tally_of[0] += 1


def engines(server: ServerProcess) -> list[int]:
    found: list[int] = []
    for pid in descendants(server.process.pid):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if b"firelane.engine\0" in command:
            found.append(pid)
    return found


async def main_of(given: argparse.Namespace) -> None:
    options = ["--backend", given.backend, "--gateways", str(given.gateways), "--engine-timeout", "600"]
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}", flush=True)
    limits = httpx.Limits(max_keepalive_connections=0)
    with ServerProcess(options) as server:
        async with httpx.AsyncClient(
            base_url=server.url, timeout=300, limits=limits, trust_env=False
        ) as client:
            for api in given.api:
                scene, kills = Scene(server, client, given.tokens, given.seed), [0]
                killer = asyncio.create_task(kill_engines(scene, kills, given.every_s, given.kills))
                tally = await run(scene, api, given.cuts, given.streams)
                killer.cancel()
                tally.kills = kills[0]
                print(tally.row(api), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--every-s", type=float, default=3.0)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "null"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--api", nargs="+", default=list(PATHS), choices=list(PATHS))
    asyncio.run(main_of(parser.parse_args()))


if __name__ == "__main__":
    main()
