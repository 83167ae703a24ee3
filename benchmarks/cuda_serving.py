"""A server on the GPU under 200 concurrent requests of ShareGPT-like lengths: throughput, latencies, CPU.

cuda_serving.py [--model DIR] [--concurrency N] [--num-requests N] [--out DIR] [-- OPTION ...]

The requests come from this process; the CPU time of the gateway and of the engine is read from /proc, as
shares of one core. The roofline is that of decode steps of so many sequences at the mix's mean context: a
bound that no server reaches, since prompts have to be read, too. Without --model a directory of Llama-8B's
shape is written first, and removed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cuda_clock import GraphClock, open_device
from cuda_drive import decoding, shape_of
from cuda_limits import Limits, measure_limits
from cuda_limits import table as limits_table
from cuda_llama import LLAMA_8B, program_of
from cuda_report import Table, parser, percent, publish, run_main
from cuda_start import model_directory

from firelane.bench.client import LoadClient, first_model
from firelane.bench.serve import ServeLoad, run_load
from firelane.bench.server import ServerProcess, cpu_seconds
from firelane.bench.summary import PERCENTS, Objectives, Summary, summarise
from firelane.bench.workload import BenchRequest, sharegpt_like, token_requests
from firelane.errors import MachineError

CONCURRENCY = 200
REQUESTS = 1000
WARM_UP = 50
VOCABULARY = 100_000  # ids of the prompts
OBJECTIVES = Objectives(ttft_ms=1000.0, tpot_ms=50.0)


@dataclass(frozen=True, kw_only=True)
class Cpu:
    """Seconds of a process over the run."""

    gateway_s: float
    engine_s: float


@dataclass(frozen=True, kw_only=True)
class Figures:
    limits: Limits
    concurrency: int
    summary: Summary
    cpu: Cpu
    roofline_tokens_per_s: float


def requests_of(count: int, seed: int) -> list[BenchRequest]:
    return token_requests(sharegpt_like(count, seed=seed), seed=seed, vocab_size=VOCABULARY)


def roofline(limits: Limits, requests: Sequence[BenchRequest], concurrency: int) -> float:
    """Tokens a second of decode steps of `concurrency` sequences, each half-way through its answer on
    average."""
    program = program_of(LLAMA_8B)
    context = sum(len(r.prompt) + r.output_tokens // 2 for r in requests) // len(requests)
    cost = program.cost(shape_of(decoding(concurrency, context)))
    return concurrency / limits.seconds(cost.weight_bytes + cost.kv_bytes, cost.flops)


def measure(server: ServerProcess, requests: Sequence[BenchRequest], concurrency: int) -> tuple[Summary, Cpu]:
    """After a warm-up. Raises MachineError where a request fails."""
    client = LoadClient(server.url, first_model(server.url), extra={"ignore_eos": True})
    load = ServeLoad(concurrency=concurrency)
    run_load(client, requests_of(WARM_UP, seed=1), load)
    engines = server.engine_pids
    before = cpu_seconds(server.gateway_pid), sum(map(cpu_seconds, engines))
    outcomes, seconds = run_load(client, requests, load)
    after = cpu_seconds(server.gateway_pid), sum(map(cpu_seconds, engines))
    summary = summarise(outcomes, seconds, OBJECTIVES)
    if summary.failed:
        raise MachineError(f"{summary.failed} requests failed, the first with: {summary.first_error}")
    return summary, Cpu(gateway_s=after[0] - before[0], engine_s=after[1] - before[1])


def tables(figures: Figures) -> list[Table]:
    s, cpu = figures.summary, figures.cpu
    rows = [
        ["output tokens a second", f"{s.output_tokens_per_s:.0f}"],
        [
            "of the roofline of its decode steps",
            percent(s.output_tokens_per_s / figures.roofline_tokens_per_s),
        ],
        ["tokens in and out a second", f"{s.total_tokens_per_s:.0f}"],
        ["requests a second", f"{s.requests_per_s:.1f}"],
        ["gateway, of a core", percent(cpu.gateway_s / s.seconds)],
        ["engine, of a core", percent(cpu.engine_s / s.seconds)],
        ["gateway, us an output token", f"{cpu.gateway_s / s.output_tokens * 1e6:.1f}"],
        ["engine, us an output token", f"{cpu.engine_s / s.output_tokens * 1e6:.1f}"],
    ]
    title = f"{s.completed} requests, {figures.concurrency} at a time, {s.prompt_tokens} tokens in, "
    title += f"{s.output_tokens} out, {s.seconds:.1f} s"
    latencies = {"time to first token": s.ttft_ms, "between tokens": s.itl_ms, "whole request": s.e2el_ms}
    cells = [[name, *(f"{values[p]:.1f}" for p in PERCENTS)] for name, values in latencies.items()]
    return [
        limits_table(figures.limits),
        Table(title=title, header=["what", "measured"], rows=rows),
        Table(title="Latencies", header=["ms", *(f"p{p}" for p in PERCENTS)], rows=cells),
    ]


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--model", metavar="DIR", help="written if it is not complete, and kept")
    made.add_argument("--concurrency", type=int, default=CONCURRENCY, help="default: %(default)s")
    made.add_argument("--num-requests", type=int, default=REQUESTS, help="default: %(default)s")
    made.add_argument("--cache-dir", metavar="DIR", help="of compiled kernels (default: a fresh one)")
    made.add_argument("options", nargs="*", metavar="OPTION", help="of firelane serve, behind --")
    return made.parse_args(given)


def serve_and_measure(arguments: argparse.Namespace, limits: Limits, model: Path, cache_dir: str) -> Figures:
    options = [str(model), "--backend", "cuda", "--max-model-len", "4096", *arguments.options]
    environ = {**os.environ, "FIRELANE_CACHE_DIR": cache_dir}
    requests = requests_of(arguments.num_requests, seed=0)
    with ServerProcess(options, environ=environ, timeout_s=180.0) as server:
        try:
            summary, cpu = measure(server, requests, arguments.concurrency)
        finally:
            print(server.log, file=sys.stderr)
    return Figures(
        limits=limits,
        concurrency=arguments.concurrency,
        summary=summary,
        cpu=cpu,
        roofline_tokens_per_s=roofline(limits, requests, arguments.concurrency),
    )


def main() -> None:
    arguments = arguments_of()
    device = open_device()
    limits = measure_limits(device, GraphClock(device))
    device.release()
    with model_directory(arguments.model) as model, tempfile.TemporaryDirectory() as scratch:
        figures = serve_and_measure(arguments, limits, model, arguments.cache_dir or scratch)
    publish("cuda_serving", tables(figures), figures, arguments)


if __name__ == "__main__":
    run_main(main)
