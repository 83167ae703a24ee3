"""Time to first token of one tenant, on an empty server and beside another tenant's flood.

    python benchmarks/tenants.py [MODEL] [--flood 300] [--requests 40]

Starts `firelane serve` with a key for each of two tenants. One sends a request at a time, each with a prompt
of its own; the other keeps `--flood` requests in flight with `firelane bench serve`, from a process of its
own, on the same cores. In turns: empty, flooded, empty, flooded. `fairness.py` measures the engine alone.
"""

from __future__ import annotations

import argparse
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.gateway.tenants.keyfile import hashed, new_key
from firelane.native.machine import cpu_identity

SIZES = (16, 128, 512)
ROUNDS = 2
SETTLE_S = 5.0
"""A flood holds all seats after so many seconds."""


def ttft_ms(url: str, key: str, tokens: int, requests: int) -> list[float]:
    """Return the times to the first token of requests one after the other."""
    random_ids = random.SystemRandom()  # no prompt twice: no cached prefix helps
    found: list[float] = []
    with httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=120, trust_env=False) as client:
        for _ in range(requests):
            prompt = [random_ids.randrange(10, 1000) for _ in range(tokens)]
            body = {"prompt": prompt, "max_tokens": 4, "stream": True, "ignore_eos": True}
            began_s = time.perf_counter()
            with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
                answer.raise_for_status()
                next(answer.iter_raw())
                found.append(1e3 * (time.perf_counter() - began_s))
            time.sleep(0.02)
    return found


@contextmanager
def flood(url: str, key: str, streams: int) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "firelane", "bench", "serve", "--url", url, "--api-key", key]
    command += ["--num-prompts", "100000", "--max-concurrency", str(streams)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        time.sleep(SETTLE_S)
        yield process
        if process.poll() is not None:
            sys.exit("the flood ended by itself: there is nothing to compare with")
    finally:
        process.kill()
        process.wait()


def measure(
    url: str, keys: dict[str, str], options: argparse.Namespace
) -> dict[tuple[str, int], list[float]]:
    found: dict[tuple[str, int], list[float]] = {(s, n): [] for s in ("empty", "flooded") for n in SIZES}

    def visit(state: str) -> None:
        for size in SIZES:
            found[state, size] += ttft_ms(url, keys["visitor"], size, options.requests // ROUNDS)

    for size in SIZES:  # what is loaded on first use
        ttft_ms(url, keys["visitor"], size, 2)
    for _ in range(ROUNDS):
        visit("empty")
        with flood(url, keys["flood"], options.flood):
            visit("flooded")
        time.sleep(1.0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="default: the embedded model")
    parser.add_argument("--flood", type=int, default=300, help="requests in flight (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=40, help="in each state (default: %(default)s)")
    options = parser.parse_args()
    keys = {name: new_key() for name in ("flood", "visitor")}
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "keys.toml")
        path.write_text("".join(f'[tenants.{n}]\nkeys = ["{hashed(key)}"]\n' for n, key in keys.items()))
        with ServerProcess([*filter(None, [options.model]), "--api-keys", str(path)]) as server:
            found = measure(server.url, keys, options)
    print(
        f"{cpu_identity().model}, {cpu_identity().usable_cores} cores, Python {platform.python_version()}\n"
    )
    header = ("prompt tokens", "empty: median ms", "p95", "flooded: median ms", "p95", "ratio (bar: 2)")
    print(format_table(header, [row(found["empty", n], found["flooded", n], n) for n in SIZES]))


def row(empty: list[float], flooded: list[float], size: int) -> list[str]:
    medians = [statistics.median(times) for times in (empty, flooded)]
    tails = [statistics.quantiles(times, n=20)[-1] for times in (empty, flooded)]
    figures = [f"{value:.1f}" for pair in zip(medians, tails, strict=True) for value in pair]
    return [str(size), *figures, f"{medians[1] / medians[0]:.2f}"]


if __name__ == "__main__":
    main()
