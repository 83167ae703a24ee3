"""Seconds from the start of `firelane serve` to its first token, with 16 GB of weights in the page cache.

cuda_start.py [--model DIR] [--repeats N] [--out DIR] [-- OPTION ...]

The first start compiles every kernel; later ones find them in the cache directory. What the server says on
its way shows where the time goes. Without --model a directory of Llama-8B's shape is written first, and
removed. The floor is the time that the same bytes take from pinned host memory to the device, measured in the
same run.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cuda_checkpoint import write_model
from cuda_clock import GraphClock, open_device
from cuda_limits import Limits, measure_limits
from cuda_limits import table as limits_table
from cuda_llama import LLAMA_8B
from cuda_report import Table, parser, publish, run_main

from firelane.errors import MachineError

SERVING = re.compile(r"serving .* at (http://[^\s)]+)")
TIMEOUT_S = 180.0
LINE_WIDTH = 110
BODY = {"prompt": [10, 11, 12, 13], "max_tokens": 1, "temperature": 0}


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds from the process's start. said: what it printed, and when."""

    name: str
    ready_s: float
    first_token_s: float
    said: list[tuple[float, str]]


@dataclass(frozen=True, kw_only=True)
class Figures:
    limits: Limits
    weights_bytes: int
    starts: list[Start]


def measure_start(name: str, command: Sequence[str], environ: dict[str, str]) -> Start:
    """Raises MachineError where the server ends, or does not get ready in time."""
    began_s = time.perf_counter()
    said: list[tuple[float, str]] = []
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env={**environ, "FIRELANE_LOG_LEVEL": "debug"}
    ) as process:
        watch = threading.Timer(TIMEOUT_S, process.kill)
        watch.start()
        try:
            url, ready_s = _until_ready(process, began_s, said)
            reader = threading.Thread(target=lambda: list(_lines(process, began_s, said)))
            reader.start()
            ask(url)
            first_token_s = time.perf_counter() - began_s
            process.terminate()
            reader.join()
        finally:
            watch.cancel()
            process.terminate()
    return Start(name=name, ready_s=ready_s, first_token_s=first_token_s, said=said)


def _lines(
    process: subprocess.Popen[str], began_s: float, said: list[tuple[float, str]]
) -> Iterator[tuple[float, str]]:
    assert process.stderr is not None
    for line in process.stderr:
        said.append((time.perf_counter() - began_s, line.rstrip()))
        yield said[-1]


def _until_ready(
    process: subprocess.Popen[str], began_s: float, said: list[tuple[float, str]]
) -> tuple[str, float]:
    for seconds, line in _lines(process, began_s, said):
        found = SERVING.search(line)
        if found:
            return found[1], seconds
    last = said[-1][1] if said else "it said nothing"
    raise MachineError(f"the server did not become ready: {last}")


def ask(url: str) -> None:
    """One token. Raises MachineError."""
    try:
        with urllib.request.urlopen(f"{url}/v1/models", timeout=30) as answer:
            model = json.load(answer)["data"][0]["id"]
        data = json.dumps(BODY | {"model": model}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            tokens = json.load(answer)["usage"]["completion_tokens"]
    except OSError as error:  # HTTP errors are such, too
        raise MachineError(f"the first request failed: {error}") from error
    if tokens != 1:
        raise MachineError(f"the first request got {tokens} tokens")


@contextmanager
def model_directory(given: str | None) -> Iterator[Path]:
    if given is not None:
        write_model(Path(given), LLAMA_8B)
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="firelane-model-") as made:
        write_model(Path(made), LLAMA_8B)
        yield Path(made)


def tables(figures: Figures) -> list[Table]:
    later = [s for s in figures.starts[1:]] or figures.starts
    floor_s = figures.weights_bytes / (figures.limits.pinned_gbps * 1e9)
    rows = [[s.name, f"{s.ready_s:.2f}", f"{s.first_token_s:.2f}"] for s in figures.starts]
    rows.append(["later, median", "", f"{statistics.median(s.first_token_s for s in later):.2f}"])
    rows.append(["floor: the bytes from pinned memory", "", f"{floor_s:.2f}"])
    starts = Table(
        title=f"Start with {figures.weights_bytes / 1e9:.1f} GB of weights",
        header=["start", "ready s", "first token s"],
        rows=rows,
    )
    phases = Table(
        title=f"What it said: {later[-1].name}",
        header=["line", "s"],
        rows=[[line.replace("|", "/")[:LINE_WIDTH], f"{seconds:.2f}"] for seconds, line in later[-1].said],
    )
    return [limits_table(figures.limits), starts, phases]


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--model", metavar="DIR", help="written if it is not complete, and kept")
    made.add_argument("--repeats", type=int, default=2, help="later starts (default: %(default)s)")
    made.add_argument("options", nargs="*", metavar="OPTION", help="of firelane serve, behind --")
    return made.parse_args(given)


def main() -> None:
    arguments = arguments_of()
    device = open_device()
    limits = measure_limits(device, GraphClock(device))
    device.release()
    with model_directory(arguments.model) as model, tempfile.TemporaryDirectory() as cache_dir:
        command = [sys.executable, "-m", "firelane", "serve", str(model), "--port", "0", "--backend", "cuda"]
        command += ["--max-model-len", "8192", *arguments.options]
        environ = {**os.environ, "FIRELANE_CACHE_DIR": cache_dir}
        names = ["first start ever", *(f"later start {i + 1}" for i in range(arguments.repeats))]
        starts = [measure_start(name, command, environ) for name in names]
        nbytes = sum(p.stat().st_size for p in model.glob("*.safetensors"))
    figures = Figures(limits=limits, weights_bytes=nbytes, starts=starts)
    publish("cuda_start", tables(figures), figures, arguments)


if __name__ == "__main__":
    run_main(main)
