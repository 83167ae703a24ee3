"""Decode of one sequence behind contexts of several lengths: its time against what memory gives, and against
that behind the first of these contexts.

    python benchmarks/long_decode.py DIR [--contexts 1000 32000] [--weights bf16] [--isa avx512bf16]

Contexts are not computed: the cache and the recurrent states are filled with numbers, as steps take the same
time whatever they are. Each round takes single steps of the contexts in turns, between two measurements of
the bandwidth; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from firelane import __version__, env
from firelane.backends.cpu import loader
from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.kernels import decode_inputs, decode_shape
from firelane.bench.table import format_table
from firelane.doctor.limits import build_probe
from firelane.engine_config import EngineConfig
from firelane.models.config import read_config
from firelane.models.registry import load_program
from firelane.native.machine import choose_isa, cpu_identity
from firelane.program.program import Program

STEPS = 8
"""Of each context, in a round."""
SMALL_BF16 = 0x3C3C
"""The bits of about 0.01, in bf16 and in float32."""


@dataclass
class Times:
    """Of one context: seconds a step, and shares of the bandwidth, of each round; bytes that a step reads and
    writes."""

    context: int
    moved: float
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)


def load(options: argparse.Namespace, program: Program, isa: str) -> CpuExecutor:
    longest = max(options.contexts)
    config = EngineConfig(
        model_dir=options.model,
        backend="cpu",
        cache_dir=env.read().cache_dir,
        max_num_seqs=1,
        max_model_len=longest,
        kv_cache_bytes=longest * program.kv_bytes_per_token * len(program.spans) * 5 // 4
        + 4 * program.state_bytes
        + (16 << 20),
        weights=options.weights,
    )
    settings = replace(env.read(), isa=isa)
    executor = loader.load_for(settings, program, options.model, config, lambda *_: None)
    executor.settle()
    for memory in (executor.pages, executor.states):
        memory.reshape(-1)[: memory.size // 2 * 2].view(np.uint16)[:] = SMALL_BF16
    return executor


def one_round(executor: CpuExecutor, contexts: list[Times]) -> list[float]:
    """Mean seconds of a step of each context: single steps in turns, as the memory's speed drifts."""
    seconds = [0.0] * len(contexts)
    for _ in range(STEPS):
        for i, times in enumerate(contexts):
            inputs = decode_inputs(executor, 1, times.context)
            began = time.perf_counter()
            executor.submit(inputs)
            executor.wait()
            seconds[i] += (time.perf_counter() - began) / STEPS
    return seconds


def measure(executor: CpuExecutor, program: Program, options: argparse.Namespace, isa: str) -> list[Times]:
    probe, threads = build_probe(env.read(), isa), cpu_identity().usable_cores
    form = executor.weights_bytes / program.weights_bytes
    found = list[Times]()
    for context in options.contexts:
        cost = program.cost(decode_shape(1, context))
        found.append(Times(context, form * cost.weight_bytes + cost.kv_bytes))
    bandwidth = probe.read_gbps(threads)
    for number in range(options.rounds + 1):
        seconds = one_round(executor, found)
        after = probe.read_gbps(threads)
        if number:  # the first one warms up
            for times, mean in zip(found, seconds, strict=True):
                times.seconds.append(mean)
                times.shares.append(times.moved / mean / 1e9 / max(bandwidth, after))
        bandwidth = after
    return found


def report(found: list[Times]) -> str:
    header = ["context", "GB a step", "ms, median", "ms, best", "of bandwidth", "time to the first row's"]
    rows = [
        [
            str(times.context),
            f"{times.moved / 1e9:.3f}",
            f"{1e3 * statistics.median(times.seconds):.2f}",
            f"{1e3 * min(times.seconds):.2f}",
            f"{statistics.median(times.shares):.0%}",
            f"{statistics.median(b / a for a, b in zip(found[0].seconds, times.seconds, strict=True)):.3f}",
        ]
        for times in found
    ]
    return format_table(header, rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 32000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--weights", default="bf16", help="as of firelane serve (default: bf16)")
    parser.add_argument("--isa", default="", help="default: the best of this machine")
    options = parser.parse_args()
    isa = choose_isa(options.isa, cpu_identity())
    program = load_program(read_config(options.model))
    executor = load(options, program, isa)
    found = measure(executor, program, options, isa)
    executor.release()
    print(f"firelane {__version__}, {isa}, weights {options.weights}, {sys.platform}")
    print(report(found))


if __name__ == "__main__":
    main()
