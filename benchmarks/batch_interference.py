"""Time to first token of interactive requests, alone and beside a batch.

    python benchmarks/batch_interference.py [--model DIR] [--requests 40] [--lines 2000] [--json FILE]

Starts `firelane serve` and sends chat requests one after the other, each with a prompt of its own so that no
cached prefix helps, in turns: a quarter on an idle server, a quarter while a batch fills it, and again. The
batch is cancelled at the end; the lines that it got done meanwhile say what the idle capacity was worth. The
limit to hold against is the server by itself, measured in the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

import firelane
from firelane.bench.server import ServerProcess

URL = "/v1/completions"
ROUNDS = 2


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="directory or hub id (default: the embedded model)")
    parser.add_argument("--requests", type=int, default=40, help="in each state (default: %(default)s)")
    parser.add_argument("--prompt-tokens", type=int, default=200)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--lines", type=int, default=5000, help="of the batch (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE")
    return parser.parse_args()


def prompt(random_ids: random.Random, tokens: int) -> list[int]:
    return [random_ids.randrange(300, 1000) for _ in range(tokens)]


class Client:
    """Interactive requests, one at a time."""

    def __init__(self, url: str, arguments: argparse.Namespace) -> None:
        self.http = httpx.Client(base_url=url, timeout=120, trust_env=False)
        self._arguments = arguments
        self._random = random.Random(1)

    def ask(self) -> tuple[float, float]:
        """Milliseconds to the first token, and between tokens on average."""
        arguments = self._arguments
        body = {
            "prompt": prompt(self._random, arguments.prompt_tokens),
            "max_tokens": arguments.max_tokens,
            "ignore_eos": True,
            "stream": True,
        }
        times: list[float] = []
        begun_s = time.perf_counter()
        with self.http.stream("POST", URL, json=body) as answer:
            assert answer.status_code == 200, answer.read()
            times += [time.perf_counter() for text in answer.iter_lines() if text]
        return (times[0] - begun_s) * 1e3, (times[-1] - times[0]) / max(1, arguments.max_tokens - 1) * 1e3

    def start_batch(self, lines: int) -> str:
        """The id of a batch that runs. It outlasts the measurement."""
        text = "".join(
            json.dumps({"custom_id": str(i), "method": "POST", "url": URL, "body": self._body()}) + "\n"
            for i in range(lines)
        )
        form = {"purpose": "batch"}
        made = self.http.post("/v1/files", files={"file": ("in.jsonl", text.encode())}, data=form)
        request = {"input_file_id": made.json()["id"], "endpoint": URL, "completion_window": "24h"}
        batch = self.http.post("/v1/batches", json=request).json()
        while self.batch(batch["id"])["request_counts"]["completed"] == 0:
            time.sleep(0.02)
        return batch["id"]

    def _body(self) -> dict[str, Any]:
        return {"prompt": prompt(self._random, 120), "max_tokens": 64, "ignore_eos": True}

    def batch(self, batch_id: str) -> dict[str, Any]:
        return self.http.get(f"/v1/batches/{batch_id}").json()

    def cancel(self, batch_id: str) -> dict[str, Any]:
        """The batch, ended."""
        self.http.post(f"/v1/batches/{batch_id}/cancel")
        while (batch := self.batch(batch_id))["status"] == "cancelling":
            time.sleep(0.02)
        return batch


def measure(client: Client, arguments: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each request by state, and what the batch did meanwhile."""
    found: dict[str, Any] = {"alone": [], "beside a batch": [], "lines": 0, "seconds": 0.0, "tokens": 0}
    client.ask()
    for _ in range(ROUNDS):
        share = max(1, arguments.requests // ROUNDS)
        found["alone"] += [client.ask() for _ in range(share)]
        batch_id = client.start_batch(arguments.lines)
        before, begun_s = client.batch(batch_id), time.perf_counter()
        found["beside a batch"] += [client.ask() for _ in range(share)]
        after, seconds = client.batch(batch_id), time.perf_counter() - begun_s
        assert after["status"] == "in_progress", f"the batch ended too early ({after['status']}): --lines"
        found["lines"] += after["request_counts"]["completed"] - before["request_counts"]["completed"]
        found["tokens"] += after["usage"]["output_tokens"] - before["usage"]["output_tokens"]
        found["seconds"] += seconds
        client.cancel(batch_id)
    return found


def row(name: str, times: list[tuple[float, float]], base: list[tuple[float, float]]) -> str:
    ttft, itl = sorted(t for t, _ in times), [i for _, i in times]
    median, p95 = statistics.median(ttft), ttft[min(len(ttft) - 1, int(0.95 * len(ttft)))]
    ratio = median / statistics.median(t for t, _ in base)
    return (
        f"| {name} | {len(ttft)} | {median:.2f} | {p95:.2f} | {ttft[-1]:.2f} | {ratio:.2f} "
        f"| {statistics.median(itl):.2f} |"
    )


def main() -> None:
    arguments = parse()
    with tempfile.TemporaryDirectory() as data_dir:
        given = [arguments.model] if arguments.model else []
        with ServerProcess([*given, "--data-dir", data_dir]) as server:
            client = Client(server.url, arguments)
            found = measure(client, arguments)
            client.http.close()
    machine = f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    print(f"firelane {firelane.__version__}, {machine}")
    print(f"prompts of {arguments.prompt_tokens} tokens, {arguments.max_tokens} generated\n")
    print("| | requests | TTFT median ms | p95 | max | median / alone | ms between tokens |")
    print("|---|---|---|---|---|---|---|")
    for name in ("alone", "beside a batch"):
        print(row(name, found[name], found["alone"]))
    rate = found["tokens"] / found["seconds"]
    print(f"\nmeanwhile the batch ended {found['lines']} lines: {rate:.0f} tokens/s")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
