"""Decode of one sequence behind contexts of several lengths: its time against what memory gives, and against
that behind the first of these contexts.

    python benchmarks/long_decode.py DIR [--contexts 1000 32000] [--weights bf16] [--isa avx512bf16]
        [--kv-cache-dtype auto int8 fp8] [--block-size 16]

Contexts are not computed: the cache and the recurrent states are filled with numbers, as steps take the same
time whatever they are. Each round takes single steps of the contexts, and of each dtype and block size of the
cache, in turns, between two measurements of the bandwidth; figures are medians of the rounds.
"""

from __future__ import annotations

import argparse
import itertools
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
from firelane.engine_config import KV_CACHE_DTYPES, EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import choose_isa, cpu_identity
from firelane.program.cache_rewrite import with_cache_dtype
from firelane.program.ops import Attention
from firelane.program.program import Program
from firelane.program.values import Cost

STEPS = 8
"""The steps of each context in a round."""
SMALL_BF16 = 0x3C3C
"""The bits of about 0.01, in bf16 and in float32."""


@dataclass
class Times:
    """The times of one context in one cache, a row for each round: seconds a step, and shares of the
    bandwidth; the same of its attention alone, and the share of the peak rate of products. cost,
    attention_cost: of a step, and of its attention."""

    executor: CpuExecutor
    cache: str
    context: int
    cost: Cost
    attention_cost: Cost
    seconds: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    attention: list[tuple[float, float, float]] = field(default_factory=list)

    def add(self, seconds: float, attention: float, gbps: float, gflops: float) -> None:
        self.seconds.append(seconds)
        self.shares.append(moved(self.cost) / seconds / 1e9 / gbps)
        of_read = moved(self.attention_cost) / attention / 1e9 / gbps
        self.attention.append((attention, of_read, self.attention_cost.flops / attention / 1e9 / gflops))


def moved(cost: Cost) -> float:
    """Bytes read and written."""
    return cost.weight_bytes + cost.kv_bytes


def load(options: argparse.Namespace, program: Program, isa: str, block_size: int) -> CpuExecutor:
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
        block_size=block_size,
    )
    settings = replace(env.read(), isa=isa)
    executor = loader.load_for(settings, program, options.model, config, lambda *_: None)
    executor.settle()
    for memory in (executor.pages, executor.states):
        memory.reshape(-1)[: memory.size // 2 * 2].view(np.uint16)[:] = SMALL_BF16
    return executor


def one_round(contexts: list[Times]) -> list[tuple[float, float]]:
    """Mean seconds of a step of each context, and of its attention: single steps in turns, as the memory's
    speed drifts."""
    seconds = [(0.0, 0.0)] * len(contexts)
    for _ in range(STEPS):
        for i, times in enumerate(contexts):
            executor, program = times.executor, times.executor.layout.program
            inputs = decode_inputs(executor, 1, times.context)
            executor.op_seconds[:] = 0
            began = time.perf_counter()
            executor.submit(inputs)
            executor.wait()
            step, attention = time.perf_counter() - began, attention_seconds(executor, program)
            seconds[i] = seconds[i][0] + step / STEPS, seconds[i][1] + attention / STEPS
    return seconds


def measure(found: list[Times], options: argparse.Namespace, isa: str) -> None:
    probe, threads = build_probe(env.read(), isa), cpu_identity().usable_cores
    peak = probe.dot_gflops(threads) or probe.fma_gflops(threads)
    bandwidth = probe.read_gbps(threads)
    for number in range(options.rounds + 1):
        steps = one_round(found)
        after = probe.read_gbps(threads)
        if number:  # the first one warms up
            for times, (seconds, attention) in zip(found, steps, strict=True):
                times.add(seconds, attention, max(bandwidth, after), peak)
        bandwidth = after


def times_of(executor: CpuExecutor, cache: str, context: int) -> Times:
    shape, program, weights_bytes = decode_shape(1, context), executor.layout.program, executor.weights_bytes
    cost, form = program.cost(shape), weights_bytes / program.weights_bytes
    attention = [op.cost(shape) for op in program.ops if isinstance(op, Attention)]
    cost = replace(cost, weight_bytes=form * cost.weight_bytes)
    return Times(executor, cache, context, cost, sum(attention, Cost()))


def attention_seconds(executor: CpuExecutor, program: Program) -> float:
    """Return the seconds of attention in a step, the mean of the steps since the times were set to zero."""
    seconds = zip(program.ops, executor.op_seconds, strict=False)
    return sum(float(s) for op, s in seconds if isinstance(op, Attention)) / float(executor.op_seconds[-1])


def report(found: list[Times]) -> str:
    header = [
        "cache",
        "context",
        "GB a step",
        "ms, median",
        "ms, best",
        "of bandwidth",
        "time to the first row's",
    ]
    header += ["attention, ms", "of bandwidth", "of peak"]
    rows = [
        [
            times.cache,
            str(times.context),
            f"{moved(times.cost) / 1e9:.3f}",
            f"{1e3 * statistics.median(times.seconds):.2f}",
            f"{1e3 * min(times.seconds):.2f}",
            f"{statistics.median(times.shares):.0%}",
            f"{statistics.median(b / a for a, b in zip(found[0].seconds, times.seconds, strict=True)):.3f}",
            *of_attention(times),
        ]
        for times in found
    ]
    return format_table(header, rows)


def of_attention(times: Times) -> list[str]:
    seconds, of_read, of_peak = (statistics.median(part) for part in zip(*times.attention, strict=True))
    return [f"{1e3 * seconds:.2f}", f"{of_read:.0%}", f"{of_peak:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("--contexts", type=int, nargs="+", default=[1000, 32000])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--weights", default="bf16", help="as of firelane serve (default: bf16)")
    parser.add_argument("--isa", default="", help="default: the best of this machine")
    parser.add_argument("--kv-cache-dtype", nargs="+", choices=KV_CACHE_DTYPES, default=["auto"])
    parser.add_argument("--block-size", type=int, nargs="+", default=[16], help="tokens of a page")
    options = parser.parse_args()
    isa = choose_isa(options.isa, cpu_identity())
    program = load_program(read_config(options.model))
    caches = list(itertools.product(options.kv_cache_dtype, options.block_size))
    executors = [load(options, with_cache_dtype(program, dtype), isa, size) for dtype, size in caches]
    found = [
        times_of(executor, f"{dtype}, pages of {size}", context)
        for context in options.contexts
        for (dtype, size), executor in zip(caches, executors, strict=True)
    ]
    measure(found, options, isa)
    for executor in executors:
        executor.release()
    print(f"firelane {__version__}, {isa}, weights {options.weights}, {sys.platform}")
    print(report(found))


if __name__ == "__main__":
    main()
