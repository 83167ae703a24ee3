"""Tiers of the KV cache: time to the first token of a long prompt by where its pages are.

    python benchmarks/kv_tiers.py MODEL [--tokens 8000] [--rounds 7] [--directory DIR]

A server that starts anew with the files of another one ("drive", read past the page cache), and one without
tiers ("computed"), in turns. What storing costs a decode: kv_costs.py.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from firelane import __version__
from firelane.bench.server import ServerProcess
from firelane.bench.table import format_table
from firelane.native.machine import cpu_identity

TIMEOUT_S = 600.0


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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="as firelane serve takes it")
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=7)
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
        restarts(arguments, tiers, common)


if __name__ == "__main__":
    main()
