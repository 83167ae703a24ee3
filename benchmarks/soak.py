"""Growth of each process of a server that answers a mixed load for hours.

    python benchmarks/soak.py [--minutes 120] [--settle-minutes 10] [--settle-rate 4] [--rate 4]
                              [--model DIR] [-- OPTIONS]

A real server on the embedded model, or on another one, with keys of three tenants and a tier on a drive. The
load: conversations that go on from turn to turn, completions, tools, schemas, some of them new, embeddings,
and streams whose clients go away. Requests begin at random times, --rate in a second on average;
while the server settles --settle-rate, so that caches with a bound are full when the first window begins.

Each process is looked at every 15 seconds: resident memory, its part that is no file, open descriptors. A
figure of the table is the median of one window; the first window begins when the settling ends. Processes
that were replaced have lines of their own. Words after `--` are further options of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from process_kinds import processes
from process_streams import SCHEMA, TOOL

from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.gateway.tenants.keyfile import hashed, new_key

SAMPLE_S = 15.0
WINDOWS = 8
"""Parts of the time after the settling; the first and the last one are compared."""
TENANTS = ("first", "second", "third")
LONGEST_TALK = 8
"""Messages, after which a conversation begins anew."""
GONE = "client went away"
Process = tuple[str, int]
"""Its kind and its process id."""
WORDS = (
    "river",
    "stone",
    "light",
    "garden",
    "winter",
    "letter",
    "music",
    "window",
    "bread",
    "horse",
    "paper",
)


@dataclass(frozen=True)
class Sample:
    at_s: float
    resident_kib: int
    own_kib: int
    descriptors: int


@dataclass(frozen=True)
class Ask:
    """One request. leaves_after: lines of the stream, after which its client goes away."""

    path: str
    body: dict[str, Any]
    leaves_after: int | None = None


@dataclass
class Talk:
    """A conversation of one tenant; each turn has the ones before as its prefix."""

    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def next(self, draw: random.Random) -> list[dict[str, Any]]:
        if len(self.messages) >= LONGEST_TALK:
            self.messages = []
        if self.messages:
            self.messages.append({"role": "assistant", "content": sentence(draw, 10)})
        self.messages.append({"role": "user", "content": sentence(draw, 12)})
        return list(self.messages)


def sentence(draw: random.Random, words: int) -> str:
    return " ".join(draw.choices(WORDS, k=words)) + "."


def chat(draw: random.Random, talk: Talk) -> Ask:
    body = {"messages": talk.next(draw), "max_tokens": draw.randint(4, 40), "stream": draw.random() < 0.7}
    return Ask("/v1/chat/completions", body)


def completion(draw: random.Random, talk: Talk) -> Ask:  # noqa: ARG001 (one signature)
    body = {"prompt": sentence(draw, draw.randint(3, 120)), "max_tokens": 24, "n": draw.choice([1, 1, 2])}
    return Ask("/v1/completions", body)


def tools(draw: random.Random, talk: Talk) -> Ask:
    choice = draw.choice(["auto", "required", "none"])
    body = {"messages": talk.next(draw), "tools": [TOOL], "tool_choice": choice, "max_tokens": 32}
    return Ask("/v1/chat/completions", body)


def schema(draw: random.Random, talk: Talk) -> Ask:
    """One in three has a text that the server has not seen."""
    title = f"no. {draw.getrandbits(64) if draw.random() < 1 / 3 else draw.randrange(4)}"
    told = {"name": "answer", "schema": {**SCHEMA, "title": title}}
    shape = {"type": "json_schema", "json_schema": told}
    return Ask(
        "/v1/chat/completions",
        {"messages": talk.next(draw), "response_format": shape, "max_tokens": 60, "stream": True},
    )


def embedding(draw: random.Random, talk: Talk) -> Ask:  # noqa: ARG001 (one signature)
    return Ask("/v1/embeddings", {"input": [sentence(draw, 20) for _ in range(draw.randint(1, 4))]})


def aborted(draw: random.Random, talk: Talk) -> Ask:
    body = {"messages": talk.next(draw), "max_tokens": 200, "stream": True}
    return Ask("/v1/chat/completions", body, leaves_after=draw.randint(1, 20))


KINDS: tuple[tuple[Callable[[random.Random, Talk], Ask], int], ...] = (
    *((chat, 6), (completion, 3), (tools, 2), (schema, 2), (embedding, 2), (aborted, 2)),
)


class Load:
    """Requests of all tenants, counted by how they ended."""

    def __init__(self, url: str, keys: list[str], seed: int) -> None:
        self._url, self._keys = url, keys
        self._draw = random.Random(seed)
        self._talks = {key: [Talk() for _ in range(4)] for key in keys}
        self.ended: Counter[str] = Counter()
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, rate: float, ends_s: float) -> None:
        """Begin `rate` requests in a second until then, and wait for the ends of all."""
        kinds, weights = zip(*KINDS, strict=True)
        async with httpx.AsyncClient(base_url=self._url, timeout=120) as client:
            while time.monotonic() < ends_s:
                await asyncio.sleep(self._draw.expovariate(rate))
                key = self._draw.choice(self._keys)
                kind = self._draw.choices(kinds, weights)[0]
                asked = kind(self._draw, self._draw.choice(self._talks[key]))
                task = asyncio.create_task(self._one(client, key, kind.__name__, asked))
                self._running.add(task)
                task.add_done_callback(self._running.discard)
            await asyncio.gather(*self._running)

    async def _one(self, client: httpx.AsyncClient, key: str, kind: str, asked: Ask) -> None:
        try:
            how = await self._ended(client, key, asked)
        except httpx.HTTPError as error:
            how = type(error).__name__
        self.ended[f"{kind}: {how}"] += 1

    async def _ended(self, client: httpx.AsyncClient, key: str, asked: Ask) -> str:
        headers, lines = {"authorization": f"Bearer {key}"}, 0
        async with client.stream("POST", asked.path, json=asked.body, headers=headers) as answer:
            async for line in answer.aiter_lines():
                lines += 1
                if asked.leaves_after is not None and lines >= asked.leaves_after:
                    return GONE
                if line.startswith('data: {"error"'):
                    return "an error in the stream"
            return str(answer.status_code)


def look(pid: int, now_s: float) -> Sample:
    """Raises OSError where the process is gone."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    resident, own = (int(fields[name].split()[0]) for name in ("VmRSS", "RssAnon"))
    return Sample(now_s, resident, own, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()))


async def watch(
    server: ServerProcess, ends_s: float, told: Path | None
) -> dict[tuple[str, int], list[Sample]]:
    samples: defaultdict[tuple[str, int], list[Sample]] = defaultdict(list)
    began_s = time.monotonic()
    while time.monotonic() < ends_s:
        now_s = time.monotonic() - began_s
        found = {**processes(server.process.pid), "server": [server.process.pid]}
        for kind, pids in found.items():
            for pid in pids:
                with contextlib.suppress(OSError, KeyError):
                    samples[kind, pid].append(look(pid, now_s))
        if told is not None:
            lines = [f"{kind} {pid} {seen[-1]}" for (kind, pid), seen in samples.items()]
            told.write_text("\n".join([f"{now_s:.0f} s", *lines]) + "\n")
        await asyncio.sleep(SAMPLE_S)
    return samples


def row(kind: str, samples: list[Sample], settle_s: float, ends_s: float) -> list[str] | None:
    """None of a process that was not there from the first window to the last one."""
    window_s = (ends_s - settle_s) / WINDOWS
    first = [s for s in samples if settle_s <= s.at_s < settle_s + window_s]
    last = [s for s in samples if s.at_s >= ends_s - window_s]
    if not first or not last:
        return None
    cells = [kind]
    for name in ("resident_kib", "own_kib"):
        before, after = (median(getattr(s, name) for s in window) for window in (first, last))
        cells += [f"{before / 1024:.1f}", f"{after / 1024:.1f}", f"{(after / before - 1) * 100:+.2f}"]
    counts = [median(s.descriptors for s in window) for window in (first, last)]
    return [*cells, *(f"{count:.0f}" for count in counts), str(max(s.descriptors for s in samples))]


def report(samples: dict[Process, list[Sample]], settle_s: float, ends_s: float) -> None:
    header = [
        "process",
        "resident MiB",
        "then",
        "%",
        "no file MiB",
        "then",
        "%",
        "descriptors",
        "then",
        "most",
    ]
    found = [row(kind, seen, settle_s, ends_s) for (kind, _), seen in sorted(samples.items())]
    print(format_table(header, [cells for cells in found if cells is not None]))
    print(f"\n{sum(cells is None for cells in found)} other processes lived for a part of the time\n")


async def soak(server: ServerProcess, keys: list[str], args: argparse.Namespace) -> None:
    took_s, settle_s, began_s = args.minutes * 60.0, args.settle_minutes * 60.0, time.monotonic()
    load = Load(server.url, keys, args.seed)

    async def drive() -> None:
        await load.run(args.settle_rate or args.rate, began_s + settle_s)
        print(f"{load.ended.total():>8} requests while the server settled", flush=True)
        await load.run(args.rate, began_s + took_s)

    _, samples = await asyncio.gather(drive(), watch(server, began_s + took_s, args.latest))
    report(samples, settle_s, took_s)
    for how, count in sorted(load.ended.items()):
        print(f"{count:>8} {how}")


def options_of(args: argparse.Namespace, scratch: Path, keys: list[str]) -> list[str]:
    entries = (f'[tenants.{t}]\nkeys = ["{hashed(k)}"]\n' for t, k in zip(TENANTS, keys, strict=True))
    (scratch / "keys.toml").write_text("".join(entries))
    own = [] if args.model is None else [str(args.model)]
    tiers = ["--kv-disk", str(scratch / "disk"), "--kv-disk-size", "0.1", "--kv-cache-gib", "0.05"]
    return [*own, "--api-keys", str(scratch / "keys.toml"), *tiers, *args.options]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="a directory, in place of the embedded model")
    parser.add_argument("--minutes", type=float, default=120.0)
    parser.add_argument("--settle-minutes", type=float, default=10.0)
    parser.add_argument("--settle-rate", type=float, help="the same while it settles; default: --rate")
    parser.add_argument("--rate", type=float, default=4.0, help="requests in a second, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--latest", type=Path, help="a file for the figures so far")
    parser.add_argument("options", nargs="*", help="of the server")
    args = parser.parse_args()
    keys = [new_key() for _ in TENANTS]
    with (
        tempfile.TemporaryDirectory() as scratch,
        ServerProcess(options_of(args, Path(scratch), keys)) as server,
    ):
        asyncio.run(soak(server, keys, args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
