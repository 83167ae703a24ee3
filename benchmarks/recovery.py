"""Streams over dying engines: requests that failed, bytes that differ, the longest pause.

    python benchmarks/recovery.py [--backend cpu|null] [--streams N] [--kills N] [--only PART ...]

A real server on the embedded model, or on another one (--model), under N streams that begin again as they
end; each request is one of a fixed set (greedy, seeded, with penalties, with log-probabilities), whose
answers are first recorded undisturbed. Parts:

    kill1, kill2     kill -9 of an engine, with one replica and with two
    all2             kill -9 of both of two at the same instant
    stop1, stop2     SIGSTOP of an engine
    restart2         SIGUSR2, with two replicas
    rank             kill -9 of either of two ranks of an engine
    expert           the same of two ranks that share experts, of a --model that has some
    stage            the same of two stages
    host             the same of two ranks on two hosts, which are processes of this machine
    hosts            the same of three stages on three hosts

The pause is the longest time between two events of a stream, over one disturbance. "Beyond re-prefill" is the
pause less the time that the engines that are left take to compute again what was lost, at the rate at which
they compute a burst of prompts otherwise; the lost tokens are in the server's log. With one replica the time
until an engine serves again counts, too. The next disturbance comes when every stream has had an event since
the last one. A row is printed as soon as its part is done: some 30 s each on two cores, four more a kill.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx
import msgspec
from recovery_load import PROMPT_TOKENS, Load, ask, spec_of

from firelane.bench.server import ServerProcess, descendants
from firelane.models.config.reader import read_config

RESUMED = re.compile(r"requests_resumed .* tokens=(\d+) one_by_one=(\d+)")
SETTLE_S = 1.0
"""The least time of streaming before a disturbance; at most it is twice as long."""


@dataclass(kw_only=True)
class Disturbance:
    """tokens: that were computed again; prefill_s: the time that this takes. alone: requests that went on one
    by one. up_s: until all engines served again."""

    pause_s: float
    tokens: int
    prefill_s: float
    alone: int
    up_s: float

    @property
    def beyond_s(self) -> float:
        return max(0.0, self.pause_s - self.prefill_s)


@dataclass(kw_only=True)
class Row:
    what: str
    requests: int
    failed: int
    different: int
    quiet_s: float
    disturbances: list[Disturbance]
    took_s: float
    errors: list[str] = field(default_factory=list)


class Bench:
    def __init__(self, server: ServerProcess, replicas: int, args: argparse.Namespace) -> None:
        self.server, self.replicas, self.args = server, replicas, args
        self.port = urlsplit(server.url).port or 0
        self.vocabulary = vocabulary_of(args.model)
        self.specs = [spec_of(i, args.tokens, self.vocabulary) for i in range(args.streams)]
        self.tokens_per_s = 0.0

    async def up(self) -> None:
        """Until all replicas serve."""
        async with httpx.AsyncClient() as client:
            while True:
                text = (await client.get(f"{self.server.url}/metrics")).text
                if re.search(rf"^firelane:replicas_up\{{.*\}} {self.replicas}\.0$", text, re.MULTILINE):
                    return
                await asyncio.sleep(0.05)

    async def part(self, what: str, disturb: Callable[[], Awaitable[None]], times: int) -> Row:
        began_s = time.perf_counter()
        await self.up()
        answers = await asyncio.gather(*(ask(self.port, spec) for spec in self.specs))
        assert not any(answer.error for answer in answers), answers[0].error
        self.tokens_per_s = await self.prefill_rate()
        load = Load(self.port, self.specs, [answer.content for answer in answers])
        await load.heard()
        disturbances = [await self.measured(load, disturb) for _ in range(times)]
        await load.stop()
        return Row(
            what=what,
            requests=load.requests,
            failed=len(load.errors),
            different=load.different,
            quiet_s=max(answer.longest_s for answer in answers),
            disturbances=disturbances,
            took_s=time.perf_counter() - began_s,
            errors=load.errors[:3],
        )

    async def measured(self, load: Load, disturb: Callable[[], Awaitable[None]]) -> Disturbance:
        await asyncio.sleep(SETTLE_S * (1 + random.random()))
        seen, began_s = len(self.server.log), time.perf_counter()
        load.mark()
        held = load.tokens
        await disturb()
        await self.up()
        up_s = time.perf_counter() - began_s
        await load.heard()
        resumed = [tuple(map(int, found)) for found in RESUMED.findall(self.server.log[seen:])]
        tokens = min(held, sum(found[0] for found in resumed))  # some were moved twice
        return Disturbance(
            pause_s=load.longest_s,
            tokens=tokens,
            prefill_s=tokens / self.tokens_per_s,
            alone=sum(found[1] for found in resumed),
            up_s=up_s,
        )

    async def prefill_rate(self) -> float:
        """Tokens of prompts that one engine computes in a second, of a burst to all of them."""
        length = PROMPT_TOKENS + self.args.tokens // 2
        draw = random.Random()
        bodies = [
            {"prompt": draw.choices(self.vocabulary, k=length), "max_tokens": 2, "stream": True}
            for _ in self.specs
        ]
        answers = await asyncio.gather(*(ask(self.port, body) for body in bodies))
        return length * len(bodies) / self.replicas / max(answer.first_s for answer in answers)

    async def signal(self, pids: list[int], number: signal.Signals) -> None:
        """Returns when all of these processes have ended."""
        for pid in pids:
            os.kill(pid, number)
        while set(pids) & set(self.server.engine_pids):
            await asyncio.sleep(0.02)

    async def kill(self) -> None:
        await self.signal([random.choice(self.server.engine_pids)], signal.SIGKILL)

    async def kill_rank(self) -> None:
        """Returns when the engine has ended with it."""
        engines = self.server.engine_pids
        ranks = [pid for pid in descendants(os.getpid()) if is_rank(pid)]
        os.kill(random.choice([*engines, *ranks]), signal.SIGKILL)
        while set(engines) & set(self.server.engine_pids):
            await asyncio.sleep(0.02)

    async def kill_all(self) -> None:
        await self.signal(self.server.engine_pids, signal.SIGKILL)

    async def stop(self) -> None:
        await self.signal([random.choice(self.server.engine_pids)], signal.SIGSTOP)

    async def restart(self) -> None:
        before = set(self.server.engine_pids)
        self.server.process.send_signal(signal.SIGUSR2)
        while before & set(self.server.engine_pids):
            await asyncio.sleep(0.1)


def vocabulary_of(model: Path | None) -> range:
    """Tokens that prompts are drawn of: no special ones of the embedded model."""
    size = read_config(model)["vocab_size"] if model is not None else 4000
    return range(100, min(size, 4000))


def is_rank(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"cpu.ranks.worker" in command or b"engine.headless" in command
    except (FileNotFoundError, ProcessLookupError):
        return False


MASTER = "127.0.0.1:29533"
OPTIONS = {
    "rank": ("--tensor-parallel-size", "2"),
    "expert": ("--expert-parallel-size", "2"),
    "stage": ("--pipeline-parallel-size", "2"),
    "host": ("--tensor-parallel-size", "2", "--master-addr", MASTER),
    "hosts": ("--pipeline-parallel-size", "3", "--master-addr", MASTER),
}
HOSTS = {"host": 2, "hosts": 3}
"""Parts whose action is of ranks."""
PARTS: dict[str, tuple[int, str]] = {
    "kill1": (1, "kill"),
    "kill2": (2, "kill"),
    "all2": (2, "kill_all"),
    "stop1": (1, "stop"),
    "stop2": (2, "stop"),
    "restart2": (2, "restart"),
    **{name: (1, "kill_rank") for name in OPTIONS},
}


def run_part(name: str, args: argparse.Namespace) -> Row:
    replicas, action = PARTS[name]
    times = args.kills if "kill" in action else 1
    options = ["--backend", args.backend, "--replicas", str(replicas), "--max-num-seqs", "256"]
    options += OPTIONS.get(name, ())
    model = [] if args.model is None else [str(args.model)]
    with (
        other_hosts([*model, *options], HOSTS.get(name, 1)) as first,
        ServerProcess([*model, *options, *first]) as server,
    ):
        bench = Bench(server, replicas, args)
        row = asyncio.run(bench.part(name, getattr(bench, action), times))
        if row.failed or row.different:
            print(*row.errors, *server.log.splitlines()[-20:], sep="\n", file=sys.stderr)
        return row


@contextmanager
def other_hosts(arguments: list[str], count: int) -> Iterator[list[str]]:
    """Processes of all hosts but the first; gives the options of that one."""
    if count == 1:
        yield []
        return
    command, nodes = [sys.executable, "-m", "firelane", "serve"], ["--nnodes", str(count), "--node-rank"]
    processes = [
        subprocess.Popen([*command, *arguments, *nodes, str(host)], stderr=subprocess.DEVNULL)
        for host in range(1, count)
    ]
    try:
        yield [*nodes, "0"]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


HEAD = """\
| part | requests | failed | bytes differ | disturbed | longest pause s | its re-prefill s | beyond it s \
| most beyond s | median beyond s | up again s | one by one | undisturbed s | part took s |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"""


def line_of(row: Row) -> str:
    worst = max(row.disturbances, key=lambda each: each.pause_s)
    beyond = [each.beyond_s for each in row.disturbances]
    return (
        f"| {row.what} | {row.requests} | {row.failed} | {row.different} | {len(row.disturbances)} "
        f"| {worst.pause_s:.2f} | {worst.prefill_s:.2f} | {worst.beyond_s:.2f} "
        f"| {max(beyond):.2f} | {median(beyond):.2f} | {max(each.up_s for each in row.disturbances):.1f} "
        f"| {sum(each.alone for each in row.disturbances)} | {row.quiet_s:.2f} | {row.took_s:.0f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", type=Path, help="a directory, in place of the embedded model")
    parser.add_argument("--backend", default="cpu")
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=200, help="of each answer")
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument(
        "--only", nargs="+", choices=PARTS, default=[part for part in PARTS if part not in OPTIONS]
    )
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(HEAD)
    rows: list[Row] = []
    for name in args.only:
        rows.append(run_part(name, args))
        print(line_of(rows[-1]), flush=True)
    if args.json is not None:
        args.json.write_bytes(msgspec.json.encode(rows))
    return int(any(row.failed or row.different for row in rows))


if __name__ == "__main__":
    sys.exit(main())
