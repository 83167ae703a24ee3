"""Seconds from the start of `firelane serve` to its first token: with an empty cache directory, then with a
warm one.

start_times.py [MODEL] [--repeats N]

The first start ever compiles the kernels and packs the weights; later ones map what lies in the cache
directory. The files of the checkpoint are in the page cache in both cases, and modules are compiled as an
installation leaves them, whatever PYTHONDONTWRITEBYTECODE says.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import os
import platform
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import firelane
from firelane.bench.client import LoadClient, first_model, read_outcome
from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.bench.workload import BenchRequest


@dataclass(frozen=True)
class Start:
    ready_s: float
    first_token_s: float


def measure_start(arguments: list[str], cache_dir: str) -> Start:
    """One start of the server and one request of one token, sent as soon as it is ready."""
    with ServerProcess(arguments, environ={**os.environ, "FIRELANE_CACHE_DIR": cache_dir}) as server:
        client = LoadClient(server.url, first_model(server.url))
        recording = asyncio.run(client.complete(BenchRequest(prompt=[10, 11, 12, 13], output_tokens=1)))
        elapsed_s = time.perf_counter() - server.started_s
        outcome = read_outcome(recording)
        if outcome.error:
            raise SystemExit(f"the first request failed: {outcome.error}")
        return Start(server.ready_s, elapsed_s)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--repeats", type=int, default=5, help="warm starts; best and median are shown")
    arguments = parser.parse_args()
    command = [arguments.model] if arguments.model else []
    compileall.compile_dir(Path(firelane.__file__).parent, quiet=1)
    with tempfile.TemporaryDirectory() as cache_dir:
        first = measure_start(command, cache_dir)
        warm = sorted(
            (measure_start(command, cache_dir) for _ in range(arguments.repeats)),
            key=lambda s: s.first_token_s,
        )
    named = {"first start ever": first, "warm, best": warm[0], "warm, median": warm[len(warm) // 2]}
    rows = [[name, f"{s.ready_s:.2f}", f"{s.first_token_s:.2f}"] for name, s in named.items()]
    print(f"firelane {firelane.__version__}, Python {platform.python_version()}, {platform.platform()}\n")
    print(format_table(["start", "ready s", "first token s"], rows))


if __name__ == "__main__":
    main()
