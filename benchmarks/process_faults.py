"""Kills and stops of every kind of process of a server, at random, under streams that use everything.

    python benchmarks/process_faults.py [--faults N] [--streams N] [--gap S] [--seed N] [--model DIR]

A real server on the embedded model, or on another one: engines for prefill and for decode (with --ranks, of
two ranks each; one such engine where four ranks have no cores), two gateway processes, pages in tiers, chat
templates, JSON schemas, tools.
N streams begin again as they end; each request is one of a fixed set, whose answers are first recorded
undisturbed.
Every schema is sent with a text of its own, so that a process tries it out. Each fault is SIGKILL or SIGSTOP
of a process that is drawn from all kinds alike; the next one comes --gap seconds later, on average.

A stream whose gateway process was lost is broken: its client asks again. Any other error is a failure. The
pause is the longest time that a client waited between two events, or for the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from firelane.bench.server import ServerProcess, descendants
from firelane.errors import MachineError

KINDS = {
    "gateway": b"firelane.server.gateway_process\0",
    "template": b"firelane.text.rendering.template_worker\0",
    "grammar_trial": b"firelane.engine.grammar.trial\0",
    "rank": b"firelane.backends.cpu.ranks.worker\0",
    "engine": b"firelane.engine\0",
}
"""Words of a command line, by kind of process. A child of an engine with its command is a helper."""
HELPER = "grammar_helper"
CORES_OF_ROLES = 4
"""For two engines of two ranks."""
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


@dataclass
class Totals:
    """Counts of all streams. broken: lost with their gateway process, and asked again."""

    requests: int = 0
    different: int = 0
    broken: int = 0
    pause_s: float = 0.0
    errors: list[str] = field(default_factory=list[str])


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


class BrokenError(Exception):
    """The connection ended before the answer did."""


async def ask(port: int, body: dict[str, Any], totals: Totals) -> str:
    """The text of an answer. Raises BrokenError, and ValueError with an error of the server."""
    data = json.dumps(body).encode()
    last_s = time.perf_counter()
    texts: list[str] = []
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 22)
        writer.write(HEAD % len(data) + data)
        status = await reader.readline()
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


def _told(delta: dict[str, Any]) -> list[str]:
    calls = delta.get("tool_calls") or []
    return [delta.get("content") or "", *(call["function"].get("arguments", "") for call in calls)]


def joined(texts: str) -> str:
    """Without where the pieces were cut."""
    return texts.replace('"]["', "").replace('[""]', "")


class Load:
    def __init__(self, port: int, args: argparse.Namespace) -> None:
        self.port, self.args, self.totals = port, args, Totals()
        self.reference: list[str] = []
        self.stopping = False

    async def record(self) -> None:
        gate = asyncio.Semaphore(16)

        async def one(index: int) -> str:
            async with gate:
                return joined(await ask(self.port, body_of(index, self.args.tokens, 0), Totals()))

        self.reference = list(await asyncio.gather(*map(one, range(self.args.streams))))

    async def stream(self, index: int) -> None:
        turn = 0
        while not self.stopping:
            turn += 1
            body = body_of(index, self.args.tokens, turn)
            while True:
                try:
                    told = joined(await ask(self.port, body, self.totals))
                except BrokenError:
                    self.totals.broken += 1
                    await asyncio.sleep(0.1)
                    continue
                except ValueError as error:
                    self.totals.errors.append(f"{index}: {error}")
                else:
                    self.totals.different += told != self.reference[index]
                break
            self.totals.requests += 1


def processes(server: int) -> dict[str, list[int]]:
    """Process ids below the server's, by kind."""
    found: defaultdict[str, list[int]] = defaultdict(list)
    for pid in descendants(server):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
            its = Path(f"/proc/{parent}/cmdline").read_bytes()
        except OSError:
            continue
        kind = next((kind for kind, words in KINDS.items() if words in command), None)
        if kind is None or state in "ZTt":
            continue
        is_helper = kind == "engine" and KINDS["engine"] in its
        found[HELPER if is_helper else kind].append(pid)
    return found


async def disturb(server: ServerProcess, args: argparse.Namespace) -> Counter[tuple[str, str]]:
    """The faults that were done, by kind of process and signal. Raises MachineError where the server ends."""
    draw, done = random.Random(args.seed), Counter[tuple[str, str]]()
    while done.total() < args.faults:
        await asyncio.sleep(draw.expovariate(1 / args.gap))
        if server.process.poll() is not None:
            raise MachineError(f"the server has ended: {server.log.strip().splitlines()[-1]}")
        found = processes(server.process.pid).items()
        living = {kind: pids for kind, pids in found if kind in args.only}
        if not living:
            continue
        kind = draw.choice(sorted(living))
        number = draw.choice([signal.SIGKILL] if args.kill else [signal.SIGKILL, signal.SIGSTOP])
        try:
            os.kill(draw.choice(sorted(living[kind])), number)
        except ProcessLookupError:
            continue
        done[kind, number.name] += 1
        if sys.stderr.isatty():
            print(f"\r{done.total()} of {args.faults}", end="", file=sys.stderr)
    return done


async def run(
    server: ServerProcess, args: argparse.Namespace
) -> tuple[Load, Counter[tuple[str, str]], float]:
    load = Load(urlsplit(server.url).port or 0, args)
    await load.record()
    streams = [asyncio.ensure_future(load.stream(i)) for i in range(args.streams)]
    began_s = time.perf_counter()
    done = await disturb(server, args)
    took_s = time.perf_counter() - began_s
    load.stopping = True
    await asyncio.wait_for(asyncio.gather(*streams), 600)
    return load, done, took_s


def options_of(args: argparse.Namespace, disk: str) -> list[str]:
    ranks = ["--tensor-parallel-size", "2"] if args.ranks else []
    has_roles = not args.ranks or len(os.sched_getaffinity(0)) >= CORES_OF_ROLES
    roles = ["--prefill", "1", "--decode", "1"] if has_roles else []
    tiers = ["--kv-disk", disk, "--kv-disk-size", "1"]
    own = [] if args.model is None else [str(args.model)]
    return [*own, *ranks, *roles, *tiers, "--gateways", "2", "--max-num-seqs", "128"]


def report(load: Load, done: Counter[tuple[str, str]], took_s: float, counts: Sequence[str]) -> None:
    totals = load.totals
    print("| faults | in s | streams | requests | failed | bytes differ | asked again | longest pause s |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {done.total()} | {took_s:.0f} | {load.args.streams} | {totals.requests} | {len(totals.errors)} "
        f"| {totals.different} | {totals.broken} | {totals.pause_s:.1f} |\n"
    )
    print("| kind | killed | stopped |\n|---|---|---|")
    for kind in sorted({kind for kind, _ in done}):
        print(f"| {kind} | {done[kind, 'SIGKILL']} | {done[kind, 'SIGSTOP']} |")
    print(*counts, *Counter(error.partition(": ")[2] for error in totals.errors).most_common(5), sep="\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="a directory, in place of the embedded model")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=60, help="of each answer")
    parser.add_argument("--gap", type=float, default=1.2, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=[*KINDS, HELPER], default=[*KINDS, HELPER])
    parser.add_argument("--kill", action="store_true", help="no process is stopped")
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="engines of two ranks each; on fewer than four cores one such engine, without roles",
    )
    parser.add_argument("--log", type=Path, help="the server's log goes there")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as disk, ServerProcess(options_of(args, disk)) as server:
        load, done, took_s = asyncio.run(run(server, args))
        page = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
        names = ("firelane:child_replacements_total", "firelane:engine_deaths_total")
        report(load, done, took_s, [line for line in page if line.startswith(names)])
        if args.log is not None:
            args.log.write_text(server.log)
    return int(bool(load.totals.errors) or load.totals.different > 0)


if __name__ == "__main__":
    sys.exit(main())
