"""Measures the host's cost: CPU time per token, requests a second, added time to first token, connections.

    python benchmarks/host_cost.py [MODEL] [--quick] [--repeats N] [--vllm PYTHON] [--json FILE]

The server runs on the null backend, which answers at once. The load comes from `host_load.py`, a process of
its own, on the same cores; its CPU time is not counted. MODEL gives tokenizer and chat template (default: the
embedded model). `--vllm PYTHON` measures vLLM beside it, with the interpreter that has it: one tiny
random layer with the same tokenizer, so that nearly all of its time, too, is the host's.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from host_vllm import VllmServer

from firelane.bench.client import first_model
from firelane.bench.server import ServerProcess, cpu_seconds, descendants

HERE = Path(__file__).resolve().parent
STREAMS, IDLE = 200, 2000
MIB = 1 << 20


class Server(Protocol):
    """A server under measurement. pid: its first process, whose descendants count too."""

    name: str
    port: int
    pid: int


@dataclass(kw_only=True)
class Firelane:
    port: int
    pid: int
    name: str = "Firelane"


@dataclass(frozen=True, kw_only=True)
class Row:
    what: str
    value: float
    unit: str
    must: str
    aim: str
    note: str = ""


@contextmanager
def firelane(model: str | None) -> Iterator[Server]:
    arguments = [*([model] if model else []), "--backend", "null", "--max-num-seqs", "256"]
    with ServerProcess(arguments) as server:
        yield Firelane(port=int(server.url.rpartition(":")[2]), pid=server.gateway_pid)


def drive(server: Server, **load: Any) -> dict[str, Any]:
    """Run the client. Raises SystemExit when a request failed."""
    model = first_model(f"http://127.0.0.1:{server.port}")
    spec = json.dumps({"port": server.port, "model": model, **load})
    done = subprocess.run(
        [sys.executable, str(HERE / "host_load.py"), spec], capture_output=True, text=True, check=True
    )
    result = json.loads(done.stdout)
    if result["failures"]:
        raise SystemExit(f"{len(result['failures'])} requests failed, the first: {result['failures'][0]}")
    return result


def processes(server: Server) -> dict[str, float]:
    """CPU seconds of the first process and of all below it."""
    below = descendants(server.pid)
    return {"gateway": cpu_seconds(server.pid), "engine": sum(map(cpu_seconds, below))}


def cost_per_token(server: Server, *, stream: bool, requests: int, max_tokens: int) -> tuple[float, str]:
    """CPU microseconds an output token, and its parts in words."""
    before = processes(server)
    result = drive(server, connections=STREAMS, requests=requests, max_tokens=max_tokens, stream=stream)
    after = processes(server)
    parts = {name: (after[name] - before[name]) * 1e6 / result["tokens"] for name in before}
    rate = result["tokens"] / result["seconds"]
    note = ", ".join(f"{name} {us:.1f}" for name, us in parts.items())
    events = f", {result['events'] / result['tokens']:.2f} events a token" if stream else ""
    return sum(parts.values()), f"{note}; {rate:.0f} tok/s{events}"


def requests_per_s(server: Server, requests: int) -> tuple[float, str]:
    before = processes(server)
    result = drive(server, connections=64, requests=requests, max_tokens=1, stream=False, prompt_words=20)
    spent_us = (sum(processes(server).values()) - sum(before.values())) * 1e6 / requests
    client_us = result["cpu_seconds"] * 1e6 / requests
    note = f"{spent_us:.0f} µs of CPU a request, {client_us:.0f} µs of the client beside it"
    return requests / result["seconds"], note


def added_ttft_ms(server: Server, requests: int) -> tuple[float, str]:
    """Median from the request's last byte out to the answer's first byte in, one request at a time."""
    tokens = 1000
    result = drive(
        server,
        connections=1,
        requests=requests,
        max_tokens=2,
        stream=True,
        prompt_words=words_of(server, tokens),
    )
    times = result["first_bytes_ms"]
    worst = statistics.quantiles(times, n=20)[-1]
    return statistics.median(times), f"{tokens}-token prompt, {requests} requests, p95 {worst:.2f}"


def words_of(server: Server, tokens: int) -> int:
    """Return how many words of the client's make a prompt of about so many tokens."""
    import urllib.request

    from host_load import Load

    words = 400
    request = Load(
        port=0, model="", connections=0, requests=0, max_tokens=1, stream=False, prompt_words=words
    )
    body = json.loads(request.request(1).partition(b"\r\n\r\n")[2])
    body = {"prompt": body["messages"][0]["content"]}
    body["model"] = first_model(f"http://127.0.0.1:{server.port}")
    url = f"http://127.0.0.1:{server.port}/tokenize"
    ask = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(ask) as answer:
        count = json.loads(answer.read())["count"]
    return round(words * tokens / count)


def resident_mib(pid: int) -> float:
    """Return the memory of one process, in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def idle_connections(server: Server, requests: int) -> tuple[float, str]:
    """MiB that the server's processes grow by with IDLE open connections and STREAMS streams."""
    pids = [server.pid, *descendants(server.pid)]
    load = {"connections": STREAMS, "requests": requests, "max_tokens": 100, "stream": True}
    before = sum(map(resident_mib, pids))
    model = first_model(f"http://127.0.0.1:{server.port}")
    spec = json.dumps({"port": server.port, "model": model, "idle": IDLE, **load})
    client = subprocess.Popen(
        [sys.executable, str(HERE / "host_load.py"), spec], stdout=subprocess.PIPE, text=True
    )
    most = before
    while client.poll() is None:
        most = max(most, sum(map(resident_mib, pids)))
        time.sleep(0.05)
    output, _ = client.communicate()
    result = json.loads(output)
    failed = len(result["failures"]) + result["idle_lost"]
    return most - before, f"{failed} failures, {IDLE} idle and {STREAMS} streams"


def measure(server: Server, *, quick: bool) -> list[Row]:
    part = 1 if quick else 4
    drive(server, connections=STREAMS, requests=STREAMS, max_tokens=50, stream=True)  # warm
    rows: list[Row] = []

    def add(what: str, unit: str, bars: tuple[str, str], figure: Callable[[], tuple[float, str]]) -> None:
        try:
            value, note = figure()
        except SystemExit as failed:  # the other rows are still worth having
            value, note = math.nan, str(failed)
        rows.append(Row(what=what, value=value, unit=unit, must=bars[0], aim=bars[1], note=note))
        print(f"  {server.name}: {what}: {value:.2f} {unit} ({note})", file=sys.stderr, flush=True)

    per_token = "CPU per output token, 200 streams, chat"
    count = {"requests": part * STREAMS, "max_tokens": 200}
    idle = f"memory added by {IDLE} idle connections and {STREAMS} streams"
    add(idle, "MiB", ("≤ 150", ""), lambda: idle_connections(server, STREAMS))
    add(per_token, "µs", ("≤ 30", "≤ 15"), lambda: cost_per_token(server, stream=True, **count))
    add(
        "the same without streaming",
        "µs",
        ("≤ 10", "≤ 4"),
        lambda: cost_per_token(server, stream=False, **count),
    )
    add("requests of max_tokens 1", "1/s", ("≥ 1500", "≥ 4000"), lambda: requests_per_s(server, part * 2000))
    add("TTFT added by the host", "ms", ("≤ 3", "≤ 1.5"), lambda: added_ttft_ms(server, part * 50))
    return rows


def best(runs: list[list[Row]]) -> list[Row]:
    """Choose the best run of each row, as other work only makes figures worse, but the worst of memory."""

    def rank(row: Row) -> float:
        if math.isnan(row.value):
            return -math.inf
        return row.value if row.unit in ("1/s", "MiB") else -row.value

    return [max(rows, key=rank) for rows in zip(*runs, strict=True)]


def table(columns: dict[str, list[Row]]) -> str:
    """One column of figures for each server; the notes are of the first one."""
    names = list(columns)
    first = columns[names[0]]
    lines = [
        f"| what | must | aim | {' | '.join(names)} | |",
        "|---|---|---|" + "---:|" * len(names) + "---|",
    ]
    for index, row in enumerate(first):
        figures = [f"{columns[name][index].value:.2f}" for name in names]
        unit = f"{row.what}, {row.unit}"
        lines.append(f"| {unit} | {row.must} | {row.aim} | {' | '.join(figures)} | {row.note} |")
    return "\n".join(lines)


def machine() -> str:
    cpu = next(
        (
            x.partition(":")[2].strip()
            for x in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in x
        ),
        platform.machine(),
    )
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("uvloop", "msgspec", "tokenizers"))
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", metavar="MODEL")
    parser.add_argument("--quick", action="store_true", help="a quarter of the requests")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="the best of N (default: 3)")
    parser.add_argument("--vllm", metavar="PYTHON", help="interpreter that has vLLM")
    parser.add_argument("--json", type=Path, metavar="FILE")
    args = parser.parse_args()
    columns: dict[str, list[Row]] = {}
    with firelane(args.model) as server:
        columns[server.name] = best([measure(server, quick=args.quick) for _ in range(args.repeats)])
    if args.vllm:
        with VllmServer(args.vllm, args.model) as other:
            columns[other.name] = best([measure(other, quick=True) for _ in range(args.repeats)])
    print(f"{machine()}\n\n{table(columns)}")
    structured = HERE / "structured_output.py"
    if structured.exists():
        print(f"\nStructured output (`{structured.name}`):\n", flush=True)
        subprocess.run([sys.executable, str(structured), *([args.model] if args.model else [])], check=True)
    if args.json:
        args.json.write_text(json.dumps({k: [asdict(r) for r in v] for k, v in columns.items()}, indent=1))


if __name__ == "__main__":
    main()
