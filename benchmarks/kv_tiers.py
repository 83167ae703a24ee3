"""Tiers of the KV cache: time to the first token of a long prompt by where its pages are, and what storing
costs a decode.

    python benchmarks/kv_tiers.py MODEL [--tokens 8000] [--rounds 7] [--only restart|decode] [--directory DIR]

restart: a server that starts anew with the files of another one ("drive", read past the page cache), and one
without tiers ("computed"), in turns. decode: tokens of four sequences, of a server without tiers, of one
whose tiers store nothing (no page is used a second time) and of one that stores all pages in host memory and
on the drive, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from firelane import __version__
from firelane.bench.server import ServerProcess, cpu_seconds
from firelane.bench.table import format_table
from firelane.native.machine import cpu_identity

TIMEOUT_S = 600.0
DECODED, SEQUENCES = 256, 4


def prompt(seed: int, tokens: int) -> list[int]:
    return np.random.default_rng(seed).integers(10, 250, tokens).tolist()


def first_token(server: ServerProcess, ids: list[int]) -> tuple[float, dict[str, Any], list[int]]:
    """Seconds, details of the prompt's tokens, and the token."""
    body = {
        "prompt": ids,
        "max_tokens": 1,
        "temperature": 0,
        "logprobs": 0,
        "return_tokens_as_token_ids": True,
    }
    began_s = time.perf_counter()
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S).json()
    seconds = time.perf_counter() - began_s
    return seconds, answer["usage"]["prompt_tokens_details"], answer["choices"][0]["logprobs"]["tokens"]


def metric(server: ServerProcess, name: str) -> float:
    lines = httpx.get(f"{server.url}/metrics", timeout=TIMEOUT_S).text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith((name + "{", name + " ")))


def wait_written(server: ServerProcess, name: str, pages: int) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while metric(server, name) < pages:
        assert time.monotonic() < deadline_s, "the pages were not written"
        time.sleep(0.1)


def restarts(arguments: argparse.Namespace, tiers: list[str], common: list[str]) -> None:
    """The same prompt each time from the drive, by an engine that has never seen it; others of its length
    computed, by one that has not either."""
    ids, found = prompt(0, arguments.tokens), dict[str, list[float]](computed=[], drive=[])
    pages = (arguments.tokens - 1) // 16
    with ServerProcess(common) as plain:
        with ServerProcess([*common, *tiers]) as server:
            _, _, expected = first_token(server, ids)
            wait_written(server, "firelane:kv_disk_pages", pages)
        _, _, computed = first_token(plain, ids)
        assert computed == expected
        for number in range(1, arguments.rounds + 1):
            seconds, details, _ = first_token(plain, prompt(number, arguments.tokens))
            assert details["cached_tokens"] == 0
            found["computed"].append(seconds)
            with ServerProcess([*common, *tiers]) as server:
                first_token(server, prompt(97, 16))
                seconds, details, token = first_token(server, ids)
            by_tier = details.get("cached_tokens_by_tier", {})
            assert token == expected, "another token"
            assert by_tier.get("disk", 0) >= (pages - 1) * 16, f"{details}"
            found["drive"].append(seconds)
            print(f"computed {found['computed'][-1]:.3f} s, drive {seconds:.3f} s {by_tier}", flush=True)
    ratios = [d / c for d, c in zip(found["drive"], found["computed"], strict=True)]
    rows = [[name, f"{statistics.median(times):.3f}"] for name, times in found.items()]
    rows.append(["drive / computed", f"{statistics.median(ratios):.4f}"])
    print(format_table(["first token after a restart", "median s"], rows))


def decode_s(server: ServerProcess, seed: int) -> tuple[float, float]:
    """Seconds of a token of SEQUENCES sequences that decode together, and of the engine's CPU time."""
    body = {
        "prompt": [prompt(seed + i, 32) for i in range(SEQUENCES)],
        "max_tokens": DECODED,
        "ignore_eos": True,
    }
    (pid,) = server.engine_pids
    began_s, used_s = time.perf_counter(), cpu_seconds(pid)
    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=TIMEOUT_S).json()
    assert answer["usage"]["completion_tokens"] == DECODED * SEQUENCES
    return (time.perf_counter() - began_s) / DECODED, (cpu_seconds(pid) - used_s) / DECODED


def decodes(arguments: argparse.Namespace, tiers: list[str], common: list[str]) -> None:
    """The first round warms up."""
    options = {
        "without tiers": [],
        "unused": [tiers[0], f"{tiers[1]}/unused", *tiers[2:], "--kv-admission", "reuse"],
        "storing": tiers,
    }
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(ServerProcess([*common, *own])) for name, own in options.items()}
        rounds: list[dict[str, tuple[float, float]]] = []
        for number in range(arguments.rounds + 1):
            turn = list(servers)[:: 1 if number % 2 else -1]
            rounds.append({name: decode_s(servers[name], 10 * number) for name in turn})
        stored = {name: metric(servers[name], "firelane:kv_disk_pages") for name in ("unused", "storing")}
    rows: list[list[str]] = []
    for name in options:
        for kind, what in enumerate(("time", "CPU time")):
            ratios = [one[name][kind] / one["without tiers"][kind] for one in rounds[1:]]
            median_ms = 1000 * statistics.median(one[name][kind] for one in rounds[1:])
            row = [name, what, f"{median_ms:.2f}", f"{statistics.median(ratios):.4f}"]
            rows.append([*row, f"{stored.get(name, 0):.0f}", " ".join(f"{one:.3f}" for one in ratios)])
    head = [f"a token of {SEQUENCES} sequences", "of", "median ms", "ratio", "pages stored", "ratios"]
    print(format_table(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="as firelane serve takes it")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=("restart", "decode"))
    parser.add_argument(
        "--directory", type=Path, help="on the drive to be measured (default: a temporary one)"
    )
    parser.add_argument("--serve", default="", help="further options of firelane serve")
    arguments = parser.parse_args()
    cpu = cpu_identity()
    print(f"firelane {__version__}, {cpu.model}, {cpu.usable_cores} cores, {arguments.model}")
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        tiers = ["--kv-disk", directory, "--kv-disk-size", "4", "--kv-offloading-size", "2"]
        common = [arguments.model, "--max-num-seqs", "8", *arguments.serve.split()]
        if arguments.only != "decode":
            restarts(arguments, tiers, common)
        if arguments.only != "restart":
            decodes(arguments, tiers, common)


if __name__ == "__main__":
    main()
