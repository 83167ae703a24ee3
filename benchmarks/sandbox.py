"""Cost of the sandbox of engines: its set-up, and decoding with it over decoding without.

    python benchmarks/sandbox.py [MODEL] [--tokens 64] [--turns 15]

Two servers of MODEL run, one with --no-sandbox. Requests of one sequence go to them in turns, so that both
meet the same machine; a turn's ratio is the time of the one over that of the other, and the median of the
ratios is printed. The set-up is timed in processes of its own, from the first call to the last: the least of
all runs is what it takes where nothing else wants the processor, the median what it took here.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlsplit

from firelane.bench.server import ServerProcess

SETUP = """
import sys, time
from pathlib import Path
from firelane import env
from firelane.child_process import Replacements
from firelane.engine.grammar.trial_process import fork_trials
from firelane.sandbox.confine import confine, forbid_changes, serve_only
cache = Path(sys.argv[1])
settings = env.read({"FIRELANE_CXX": "/usr/bin/g++"})
began = time.perf_counter()
confine(settings, cache, [cache])
confined = time.perf_counter()
fork_trials(Replacements())
forked = time.perf_counter()
serve_only()
serves = time.perf_counter()
forbid_changes()
print(confined - began, forked - confined, serves - forked, time.perf_counter() - serves)
"""
SETUPS = 20


def setup_ms() -> list[tuple[float, ...]]:
    """Runs: files and calls, the helper, programs, changes of files."""
    with tempfile.TemporaryDirectory() as cache:
        runs = [
            subprocess.run([sys.executable, "-c", SETUP, cache], capture_output=True, text=True, check=True)
            for _ in range(SETUPS)
        ]
    return [tuple(float(word) * 1e3 for word in run.stdout.split()) for run in runs]


class Decoding:
    """One connection to a server."""

    def __init__(self, url: str, tokens: int) -> None:
        parts = urlsplit(url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port)
        self._body = json.dumps(
            {"prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        )

    def seconds(self) -> float:
        began_s = time.perf_counter()
        self._connection.request("POST", "/v1/completions", self._body, {"content-type": "application/json"})
        answer = self._connection.getresponse()
        answer.read()
        assert answer.status == 200, answer.status
        return time.perf_counter() - began_s


def measure(model: list[str], tokens: int, turns: int) -> tuple[list[float], list[float]]:
    """Seconds of each turn with the sandbox, and without it."""
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(
                ServerProcess([*model, "--kv-cache-gib", "0.5", "--speculative", "off", *options])
            )
            for options in ((), ("--no-sandbox",))
        ]
        confined, free = (Decoding(server.url, tokens) for server in servers)
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(-1, turns):  # the first one warms up
            pairs = [(confined, times[0]), (free, times[1])]
            for decoding, own in pairs if turn % 2 else reversed(pairs):
                took_s = decoding.seconds()
                if turn >= 0:
                    own.append(took_s)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    runs = setup_ms()
    for name, pick in (("least", min), ("median", statistics.median)):
        files, helper, programs, changes = (pick(column) for column in zip(*runs, strict=True))
        print(
            f"set-up, {name}: {pick(map(sum, runs)):.2f} ms; files {files:.2f}, helper {helper:.2f}, "
            f"programs {programs:.2f}, changes of files {changes:.2f}"
        )
    model = [arguments.model] if arguments.model else []
    confined, free = measure(model, arguments.tokens, arguments.turns)
    ratios = [with_it / without for with_it, without in zip(confined, free, strict=True)]
    print(f"decode, {arguments.tokens} tokens, {arguments.turns} turns, medians:")
    for name, times in (("sandbox", confined), ("--no-sandbox", free)):
        print(f"  {name:<13} {arguments.tokens / statistics.median(times):.2f} tokens/s")
    print(f"  time with it over time without: {statistics.median(ratios):.4f}")


if __name__ == "__main__":
    main()
