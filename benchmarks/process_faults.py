"""Kills and stops of every kind of process of a server, at random, under streams that use everything.

    python benchmarks/process_faults.py [--setting plain|nixl|compilers] [--ranks] [--faults N] [--streams N]
                                        [--gap S] [--seed N] [--model DIR] [--only KIND ...]

Real servers on the embedded model, or on another one, with two gateway processes each, chat templates, JSON
schemas and tools. `plain`: engines for prefill and for decode (with --ranks, of two ranks each; one such
engine where four ranks have no cores), pages in tiers. `nixl`: two servers, one of which has the pages of
each prompt from the other one, by NIXL (the extra `rdma`). `compilers`: two engines; whenever both serve, the
compiled kernels are removed and one of them is killed, so that its successor compiles them.

N streams begin again as they end; each request is one of a fixed set, whose answers are first recorded
undisturbed. Every schema is sent with a text of its own, so that a process tries it out. Each fault is
SIGKILL or SIGSTOP of a process that is drawn from all kinds alike, or from those of --only; the next one
comes --gap seconds later, on average.

A stream whose gateway process was lost is broken: its client asks again. Any other error is a failure. The
pause is the longest time that a client waited between two events, or for the first one.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
from process_kinds import KINDS
from process_servers import SETTINGS, Servers
from process_streams import Load

Done = Counter[tuple[str, str]]
"""Faults by kind of process and signal."""
COUNTERS = ("firelane:child_replacements_total", "firelane:engine_deaths_total", "firelane:kv_pull")


async def disturb(servers: Servers, args: argparse.Namespace) -> Done:
    """Do all faults. Raises MachineError where a server ends."""
    draw, done = random.Random(args.seed), Done()
    while done.total() < args.faults:
        await asyncio.sleep(draw.expovariate(1 / args.gap))
        await servers.prepare(draw)
        living = {kind: pids for kind, pids in servers.processes().items() if kind in args.only}
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


async def run(servers: Servers, args: argparse.Namespace) -> tuple[Load, Done, float]:
    """The load, the faults, and the seconds that they took."""
    load = Load(servers.ask, args.streams, args.tokens)
    await load.start()
    began_s = time.perf_counter()
    done = await disturb(servers, args)
    took_s = time.perf_counter() - began_s
    await load.end()
    return load, done, took_s


def report(load: Load, done: Done, took_s: float) -> None:
    totals = load.totals
    print("| faults | in s | streams | requests | failed | bytes differ | asked again | longest pause s |")
    print("|---|---|---|---|---|---|---|---|")
    print(
        f"| {done.total()} | {took_s:.0f} | {load.streams} | {totals.requests} | {len(totals.errors)} "
        f"| {totals.different} | {totals.broken} | {totals.pause_s:.1f} |\n"
    )
    print("| kind | killed | stopped |\n|---|---|---|")
    for kind in sorted({kind for kind, _ in done}):
        print(f"| {kind} | {done[kind, 'SIGKILL']} | {done[kind, 'SIGSTOP']} |")
    print(*Counter(error.partition(": ")[2] for error in totals.errors).most_common(5), sep="\n")


def counted(servers: Servers) -> Iterator[str]:
    """Lines of all servers' metrics, and how often a compiler was replaced."""
    for server in servers.servers:
        page = httpx.get(f"{server.url}/metrics", timeout=60).text.splitlines()
        yield from (line for line in page if line.startswith(COUNTERS))
        yield f"compilers replaced: {server.log.count('child_replaced kind=compiler')}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--setting", choices=SETTINGS, default="plain")
    parser.add_argument("--model", type=Path, help="a directory, in place of the embedded model")
    parser.add_argument("--faults", type=int, default=500)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--tokens", type=int, default=60, help="of each answer")
    parser.add_argument("--gap", type=float, default=1.2, help="seconds between two faults, on average")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--kill", action="store_true", help="no process is stopped")
    parser.add_argument(
        "--ranks",
        action="store_true",
        help="engines of two ranks each; on fewer than four cores one such engine, without roles",
    )
    parser.add_argument("--log", type=Path, help="the servers' logs go there")
    return parser.parse_args()


def main() -> int:
    args = parsed()
    with contextlib.ExitStack() as stack:
        servers = SETTINGS[args.setting](stack, args)
        load, done, took_s = asyncio.run(run(servers, args))
        report(load, done, took_s)
        print(*counted(servers), sep="\n")
        if args.log is not None:
            args.log.write_text("\n".join(server.log for server in servers.servers))
    return int(bool(load.totals.errors) or load.totals.different > 0)


if __name__ == "__main__":
    sys.exit(main())
