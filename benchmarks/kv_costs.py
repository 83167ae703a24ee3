"""The cost to a whole server of telling and of storing what its KV cache has:

    python benchmarks/kv_costs.py [MODEL] [--only events|router|tiers] [--rounds 9] [--figures FILE]

events: `--kv-events-config`, with a subscriber. router: two engines by `--routing page-aware`, which tell the
gateway of their pages, beside `least-tokens`. tiers: decoding with pages in host memory, and there and on a
drive. Prompts have nothing in common, so that all servers compute the same.

One server for each way, all idle but the one whose turn it is. A round asks each of them the same, in turns;
the next one begins with another server, and has other prompts. Ratios are of turns of one round. Processor
time is that of all processes of a server, with what they do after the last answer: it varies less than the
time by the clock where other work runs beside, and that of threads that do not compute varies least. Turns
are kept in --figures, from which a further start goes on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import platform
import random
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import numpy as np
import zmq
from random_model import COMMON, write_checkpoint, write_tokenizer

from firelane import __version__
from firelane.bench.client import LoadClient, first_model, read_outcome
from firelane.bench.server import ServerProcess, cpu_seconds, descendants
from firelane.bench.table import format_table
from firelane.bench.workload import BenchRequest
from firelane.gateway.config.model import LEAST_TOKENS, PAGE_AWARE
from firelane.native.machine import cpu_identity

CONFIG: dict[str, Any] = COMMON | {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_act": "silu",
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "vocab_size": 8192,
}
"""80 million parameters; 12 KiB of keys and values a token."""
KV_GIB = 0.1
SECONDS, ROUNDS = 3600.0, 9
REST_S, REST_SHARE, REST_LOOKS = 0.25, 0.06, 80
"""A server is at rest when its processes use less than this share of a core for so long; it is looked at so
often at most."""
CPU, HOST, WALL = "processor time a token", "of it, not computing", "tokens a second"
COMPUTES = 0.25
"""A thread of an engine computes that uses more than this share of what its busiest one does: others tell,
store, plan and write answers."""


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests that come at the same time. prompt, output: tokens of each."""

    clients: int
    prompt: int
    output: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """Ways to serve, of which the first one is what the others are compared with. Words of `firelane serve`
    may name the {place} of tiers and the {port} of the subscriber. warm: turns before the first round, after
    which caches and tiers are full."""

    load: Load
    warm: int
    ways: Mapping[str, Sequence[str]]


EVENTS = '{{"enable_kv_cache_events": true, "endpoint": "tcp://127.0.0.1:{port}"}}'
MEMORY, DRIVE = ("--kv-offloading-size", "0.06"), ("--kv-disk", "{place}", "--kv-disk-size", "0.06")
CASES = {
    "events": Case(
        load=Load(clients=8, prompt=400, output=128),
        warm=2,
        ways={"without": (), "ZeroMQ": ("--kv-events-config", EVENTS)},
    ),
    "router": Case(
        load=Load(clients=8, prompt=400, output=128),
        warm=2,
        ways={
            "least-tokens": ("--replicas", "2", "--routing", LEAST_TOKENS),
            "page-aware": ("--replicas", "2", "--routing", PAGE_AWARE),
        },
    ),
    "tiers": Case(
        load=Load(clients=4, prompt=32, output=256),
        warm=5,
        ways={"without": (), "host": MEMORY, "host and drive": (*MEMORY, *DRIVE)},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """Figures of one way in one round. cpu_s: of all processes of the server; host_s: of them, but for
    threads of engines that compute."""

    case: str
    way: str
    number: int
    tokens: int
    wall_s: float
    cpu_s: float
    host_s: float

    def of(self, what: str) -> float:
        """CPU and HOST in milliseconds, or WALL."""
        if what == WALL:
            return self.tokens / self.wall_s
        return 1000 * (self.cpu_s if what == CPU else self.host_s) / self.tokens


Threads = dict[int, dict[str, float]]
"""Seconds of processor time by process and thread."""


class Subscriber:
    """A reader of events, to which servers connect. port: on loopback. count: batches so far."""

    def __init__(self) -> None:
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.subscribe(b"")
        self._socket.setsockopt(zmq.RCVTIMEO, 100)
        self.port, self.count = self._socket.bind_to_random_port("tcp://127.0.0.1"), 0
        self._is_closing = False
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closing = True
        self._thread.join()
        self._socket.close()

    def _read(self) -> None:
        while not self._is_closing:
            try:
                self._socket.recv_multipart()
            except zmq.Again:
                continue
            self.count += 1


def main() -> None:
    options = _parser().parse_args()
    print(f"Firelane {__version__}, Python {platform.python_version()}, {options.model or 'a small model'}")
    cpu = cpu_identity()
    print(f"{cpu.model}, {cpu.usable_cores} cores, Linux {platform.release()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        model = options.model or _small_model(Path(directory) / "model")
        ends_s = time.monotonic() + options.seconds
        for name in options.only or CASES:
            _measure(name, [str(model), *options.serve.split()], Path(directory), options, ends_s)
    print(report(read_turns(options.figures)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", help="as firelane serve takes it (default: a small one)")
    parser.add_argument("--only", nargs="+", choices=list(CASES))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="after which no round begins")
    parser.add_argument("--figures", type=Path, default=Path("kv_costs.jsonl"))
    parser.add_argument("--directory", type=Path, help="on the drive to be measured")
    parser.add_argument("--prompt", type=int, help="tokens of a prompt, in place of the case's")
    parser.add_argument("--output", type=int, help="tokens of an answer")
    parser.add_argument("--warm", type=int, help="turns before the first round")
    parser.add_argument(
        "--serve",
        default=f"--max-num-seqs 16 --kv-cache-gib {KV_GIB}",
        help="further options of all servers (default: %(default)s)",
    )
    return parser


def _small_model(directory: Path) -> Path:
    write_checkpoint(directory, CONFIG)
    write_tokenizer(directory, CONFIG["vocab_size"])
    return directory


def _measure(
    name: str, common: Sequence[str], directory: Path, options: argparse.Namespace, ends_s: float
) -> None:
    """The rounds of a case that are still to be done, as far as the time allows."""
    case = CASES[name]
    load = Load(
        clients=case.load.clients,
        prompt=options.prompt or case.load.prompt,
        output=options.output or case.load.output,
    )
    done = {turn.number for turn in read_turns(options.figures) if turn.case == name}
    numbers = [number for number in range(options.rounds) if number not in done]
    if not numbers or time.monotonic() >= ends_s:
        return
    with ExitStack() as stack:
        subscriber = Subscriber()
        stack.callback(subscriber.close)
        servers: dict[str, ServerProcess] = {}
        for way, words in case.ways.items():
            place = directory / f"{name} {way}"
            place.mkdir(mode=0o700, exist_ok=True)
            own = [word.format(place=place, port=subscriber.port) for word in words]
            servers[way] = stack.enter_context(ServerProcess([*common, *own]))
            for number in range(case.warm if options.warm is None else options.warm):
                _turn(servers[way], name, way, -1 - number, load)
        for number in numbers:
            if time.monotonic() < ends_s:
                turns = [
                    _turn(servers[way], name, way, number, load) for way in rotated(list(servers), number)
                ]
                _keep(options.figures, turns)
        _tell(servers, subscriber)


def _keep(path: Path, turns: Sequence[Turn]) -> None:
    """A round at a time: one that was cut short has nothing to be compared with."""
    with path.open("a") as file:
        file.writelines(json.dumps(asdict(turn)) + "\n" for turn in turns)


def read_turns(path: Path) -> list[Turn]:
    lines = path.read_text().splitlines() if path.exists() else []
    return [Turn(**json.loads(line)) for line in lines]


def _tell(servers: Mapping[str, ServerProcess], subscriber: Subscriber) -> None:
    """That what was to be measured did happen."""
    if subscriber.count:
        print(f"{subscriber.count} batches of events")
    for way, server in servers.items():
        stored = {tier: _metric(server, f"firelane:kv_{tier}_pages") for tier in ("host", "disk")}
        if any(stored.values()):
            print(
                f"{way}: pages stored: {stored['host']:.0f} in host memory, {stored['disk']:.0f} on the drive"
            )


def _metric(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=30).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


def rotated(names: Sequence[str], number: int) -> list[str]:
    at = number % len(names)
    return [*names[at:], *names[:at]]


def _turn(server: ServerProcess, case: str, way: str, number: int, load: Load) -> Turn:
    client = LoadClient(server.url, first_model(server.url))
    before_s = cpu_at_rest(lambda: _cpu_s(server))
    threads = _threads(server)
    began_s = time.perf_counter()
    tokens = asyncio.run(_ask(client, prompts_of(case, number, load), load.output))
    wall_s = time.perf_counter() - began_s
    cpu_s = cpu_at_rest(lambda: _cpu_s(server)) - before_s
    host_s = not_computing(threads, _threads(server), server.engine_pids)
    return Turn(case=case, way=way, number=number, tokens=tokens, wall_s=wall_s, cpu_s=cpu_s, host_s=host_s)


def _cpu_s(server: ServerProcess) -> float:
    return sum(map(cpu_seconds, [server.process.pid, *descendants(server.process.pid)]))


def _threads(server: ServerProcess) -> Threads:
    """Seconds so far (Documentation/scheduler/sched-stats.rst of Linux)."""
    found: Threads = {}
    for pid in [server.process.pid, *descendants(server.process.pid)]:
        with contextlib.suppress(OSError):
            paths = Path(f"/proc/{pid}/task").iterdir()
            found[pid] = {path.name: int((path / "schedstat").read_text().split()[0]) / 1e9 for path in paths}
    return found


def not_computing(before: Threads, after: Threads, engines: Sequence[int]) -> float:
    """Seconds of all threads but those of engines that compute."""
    host_s = 0.0
    for pid, threads in after.items():
        used = [seconds - before.get(pid, {}).get(name, 0.0) for name, seconds in threads.items()]
        most_s = COMPUTES * max(used, default=0.0) if pid in engines else float("inf")
        host_s += sum(seconds for seconds in used if seconds <= most_s)
    return host_s


def cpu_at_rest(look: Callable[[], float], sleep: Callable[[float], Any] = time.sleep) -> float:
    """Seconds of processor time so far, once what is left to do behind the answers is done."""
    before_s = look()
    for _ in range(REST_LOOKS):
        sleep(REST_S)
        now_s = look()
        if now_s - before_s < REST_SHARE * REST_S:
            return now_s
        before_s = now_s
    raise SystemExit("the server does not come to rest")


async def _ask(client: LoadClient, prompts: Sequence[list[int]], output: int) -> int:
    """Tokens of the answers."""
    requests = [BenchRequest(prompt=prompt, output_tokens=output) for prompt in prompts]
    outcomes = [read_outcome(one) for one in await asyncio.gather(*map(client.complete, requests))]
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors or any(outcome.cached_tokens for outcome in outcomes):
        raise SystemExit(errors[0] if errors else "a prompt was found in the cache")
    return sum(outcome.output_tokens for outcome in outcomes)


def prompts_of(case: str, number: int, load: Load) -> list[list[int]]:
    """Token ids; other ones for each number."""
    rng = np.random.default_rng(random.Random(f"{case} {number}").getrandbits(64))
    return rng.integers(100, 500, (load.clients, load.prompt)).tolist()


def report(turns: Sequence[Turn]) -> str:
    """A row for each way but a case's first: medians, and those of ratios to the first one in its round."""
    header = ("case", "way", "rounds", "of", "median", "ratio (middle half; all)", "more")
    rows: list[tuple[str, ...]] = []
    for name, case in CASES.items():
        for way in case.ways:
            rows += [row for what in (CPU, HOST, WALL) if (row := _row(turns, name, way, what))]
    return format_table(header, rows)


def _row(turns: Sequence[Turn], name: str, way: str, what: str) -> tuple[str, ...]:
    """() where nothing was measured. more: microseconds a token, of HOST with their share of all that the
    first way takes; or what was lost of the tokens."""
    first = next(iter(CASES[name].ways))
    plain = {turn.number: turn.of(what) for turn in turns if (turn.case, turn.way) == (name, first)}
    own = {turn.number: turn.of(what) for turn in turns if (turn.case, turn.way) == (name, way)}
    if len(own) < 2:
        return ()
    middle = f"{median(own.values()):.4g}{'' if what == WALL else ' ms'}"
    cells = (name, way, str(len(own)), what, middle)
    if way == first:
        return (*cells, "", "")
    ratios = sorted(own[number] / plain[number] for number in own)
    low, _, high = quantiles(ratios, n=4, method="inclusive")
    spread = f"{low:.3f}-{high:.3f}; {ratios[0]:.3f}-{ratios[-1]:.3f}"
    more_ms = median(own[number] - plain[number] for number in own)
    more = f"{100 * (1 - median(ratios)):+.2f}% lost" if what == WALL else f"{1000 * more_ms:+.1f} µs"
    if what == HOST:
        all_ms = median(turn.of(CPU) for turn in turns if (turn.case, turn.way) == (name, first))
        more += f", {100 * more_ms / all_ms:+.2f}% of all"
    return (*cells, f"{median(ratios):.4f} ({spread})", more)


if __name__ == "__main__":
    main()
