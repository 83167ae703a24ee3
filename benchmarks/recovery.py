"""Streams over dying engines: requests that failed, bytes that differ, the longest pause.

    python benchmarks/recovery.py [--backend cpu|null] [--streams N] [--kills N] [--only PART ...]

A real server on the embedded model, under N streams that begin again as they end; each request is one of a
fixed set (greedy, seeded, with penalties, with log-probabilities), whose answers are first recorded
undisturbed. Parts:

    kill1, kill2     kill -9 of an engine, with one replica and with two
    stop1, stop2     SIGSTOP of an engine
    restart2         SIGUSR2, with two replicas

The pause is the longest time between two events of a stream. "Beyond it" is the pause less the time that a
burst of as many prompts, as long as the streams are on average, takes to its last first token. An engine is
killed when every stream has had an event since the last kill.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec

from firelane.bench.server import ServerProcess

EVENT = re.compile(rb"data: (\{.*?\})\n\n", re.DOTALL)
PROMPT_TOKENS = 48
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {"temperature": 0.9, "top_p": 0.95},
    {"temperature": 0.8, "repetition_penalty": 1.2, "presence_penalty": 0.2},
    {"temperature": 1.0, "logprobs": 1},
)
SETTLE_S = 1.0
"""Of streaming between two disturbances."""


class Choice(msgspec.Struct):
    text: str
    finish_reason: str | None = None
    logprobs: msgspec.Raw = msgspec.Raw(b"null")


class Event(msgspec.Struct):
    choices: list[Choice] = []
    error: msgspec.Raw | None = None


@dataclass
class Answer:
    """parts: text and log-probabilities, in order. last_s: of the last event."""

    parts: list[bytes] = field(default_factory=list)
    error: str = ""
    first_s: float = 0.0
    last_s: float = 0.0
    longest_s: float = 0.0

    @property
    def content(self) -> bytes:
        return b"".join(self.parts)


def spec_of(index: int, max_tokens: int) -> dict[str, Any]:
    draw = random.Random(index)
    return {
        "prompt": [draw.randrange(100, 4000) for _ in range(PROMPT_TOKENS)],
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
    head = b"POST /v1/completions HTTP/1.1\r\nhost: b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n"
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
        self.longest_s = 0.0
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

    async def _stream(self, index: int) -> None:
        while not self._stopping:
            answer = self._live[index] = Answer()
            await ask(self._port, self._specs[index], answer)
            del self._live[index]
            self.requests += 1
            self.longest_s = max(self.longest_s, answer.longest_s)
            if answer.error:
                self.errors.append(answer.error)
            elif answer.content != self._reference[index]:
                self.different += 1


@dataclass(kw_only=True)
class Row:
    what: str
    requests: int
    failed: int
    different: int
    pause_s: float
    prefill_s: float
    quiet_s: float
    noticed_s: float = 0.0
    errors: list[str] = field(default_factory=list)

    @property
    def beyond_s(self) -> float:
        return max(0.0, self.pause_s - self.prefill_s)


class Bench:
    def __init__(self, server: ServerProcess, replicas: int, args: argparse.Namespace) -> None:
        self.server, self.replicas, self.args = server, replicas, args
        self.port = urlsplit(server.url).port or 0
        self.specs = [spec_of(i, args.tokens) for i in range(args.streams)]
        self.noticed_s = 0.0

    def engines(self) -> list[int]:
        return [pid for pid in self.server.engine_pids if is_engine(pid)]

    async def up(self) -> None:
        """Until all replicas serve."""
        async with httpx.AsyncClient() as client:
            while True:
                text = (await client.get(f"{self.server.url}/metrics")).text
                if re.search(rf"^firelane:replicas_up\{{.*\}} {self.replicas}\.0$", text, re.MULTILINE):
                    return
                await asyncio.sleep(0.05)

    async def part(self, what: str, disturb: Callable[[Load], Awaitable[None]]) -> Row:
        await self.up()
        answers = await asyncio.gather(*(ask(self.port, spec) for spec in self.specs))
        assert not any(answer.error for answer in answers), answers[0].error
        reference = [answer.content for answer in answers]
        quiet_s = max(answer.longest_s for answer in answers)
        prefill_s = await self.prefill_s()
        load = Load(self.port, self.specs, reference)
        await load.heard()
        await disturb(load)
        await load.heard()
        await load.stop()
        return Row(
            what=what,
            requests=load.requests,
            failed=len(load.errors),
            different=load.different,
            pause_s=load.longest_s,
            prefill_s=prefill_s,
            quiet_s=quiet_s,
            noticed_s=self.noticed_s,
            errors=load.errors[:3],
        )

    async def prefill_s(self) -> float:
        """For as many prompts as there are streams, each as long as a stream is on average."""
        length = PROMPT_TOKENS + self.args.tokens // 2
        draw = random.Random()
        bodies = [
            {"prompt": [draw.randrange(100, 4000) for _ in range(length)], "max_tokens": 2, "stream": True}
            for _ in self.specs
        ]
        answers = await asyncio.gather(*(ask(self.port, body) for body in bodies))
        return max(answer.first_s for answer in answers)

    async def kill(self, load: Load) -> None:
        for _ in range(self.args.kills):
            pid = random.choice(self.engines())
            os.kill(pid, signal.SIGKILL)
            while pid in self.engines():
                await asyncio.sleep(0.02)
            await self.up()
            await load.heard()
            await asyncio.sleep(SETTLE_S * random.random())

    async def stop(self, load: Load) -> None:
        del load
        pid = random.choice(self.engines())
        began_s = time.perf_counter()
        os.kill(pid, signal.SIGSTOP)
        while pid in self.engines():
            await asyncio.sleep(0.05)
        await self.up()
        self.noticed_s = time.perf_counter() - began_s

    async def restart(self, load: Load) -> None:
        del load
        before = set(self.engines())
        began_s = time.perf_counter()
        self.server.process.send_signal(signal.SIGUSR2)
        while before & set(self.engines()):
            await asyncio.sleep(0.1)
        self.noticed_s = time.perf_counter() - began_s


def is_engine(pid: int) -> bool:
    try:
        command, state = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return b"firelane.engine\0" in command and state.rpartition(")")[2].split()[0] != "Z"


PARTS: dict[str, tuple[int, str]] = {
    "kill1": (1, "kill"),
    "kill2": (2, "kill"),
    "stop1": (1, "stop"),
    "stop2": (2, "stop"),
    "restart2": (2, "restart"),
}


def run_part(name: str, args: argparse.Namespace) -> Row:
    replicas, action = PARTS[name]
    options = ["--backend", args.backend, "--replicas", str(replicas), "--max-num-seqs", "256"]
    with ServerProcess(options) as server:
        bench = Bench(server, replicas, args)
        row = asyncio.run(bench.part(name, getattr(bench, action)))
        if row.failed or row.different:
            print(*row.errors, *server.log.splitlines()[-20:], sep="\n", file=sys.stderr)
        return row


def report(rows: list[Row]) -> str:
    lines = [
        "| part | requests | failed | bytes differ | longest pause s | re-prefill s | beyond it s "
        "| undisturbed s | done after s |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.what} | {row.requests} | {row.failed} | {row.different} | {row.pause_s:.2f} "
        f"| {row.prefill_s:.2f} | {row.beyond_s:.2f} | {row.quiet_s:.2f} | {row.noticed_s:.1f} |"
        for row in rows
    ]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=400, help="of each answer")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rows = [run_part(name, args) for name in args.only]
    print(report(rows))
    if args.json is not None:
        args.json.write_bytes(msgspec.json.encode(rows))
    return int(any(row.failed or row.different for row in rows))


if __name__ == "__main__":
    sys.exit(main())
