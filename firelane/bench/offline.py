"""Speed of the engine alone on fixed workloads, with what it takes from the machine against what the machine
has.

All greedy, stop tokens ignored, prefix cache off, prompts of random ids, best of several runs:

    prefill-512           1 request,  512 in,   1 out    prompt tokens/s
    decode-1              1 request,   16 in,  64 out    output tokens/s
    decode-8              8 requests,  16 in,  64 out    output tokens/s, all requests
    mix-32               32 requests, 128 in, 128 out    input + output tokens/s
    long-prefill-6000     1 request, 6000 in,   1 out    prompt tokens/s
    long-decode-6000      1 request, 6000 in,  33 out    output tokens/s of the 32 after the first

GB/s and GFLOP/s are those that the Program's cost says the workload needs at least, in the time it took.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.bench.table import format_table
from firelane.doctor.limits import Limits, measure_limits
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.program.program import Program
from firelane.program.values import Cost, StepShape
from firelane.weights.progress import Progress

if TYPE_CHECKING:
    from firelane.bench.engine import EngineGenerator

MAX_NUM_SEQS = 64
MAX_NUM_BATCHED_TOKENS = 2048


@dataclass(frozen=True, kw_only=True)
class Workload:
    """`sequences` prompts of `prompt_tokens`, `output_tokens` generated for each. counted: which tokens the
    rate counts ("prompt", "output", "all", or "later": the output after the first token, without the time of
    the prompt)."""

    name: str
    sequences: int
    prompt_tokens: int
    output_tokens: int
    counted: str

    @property
    def tokens(self) -> int:
        each = {
            "prompt": self.prompt_tokens,
            "output": self.output_tokens,
            "all": self.prompt_tokens + self.output_tokens,
            "later": self.output_tokens - 1,
        }
        return self.sequences * each[self.counted]

    @property
    def longest(self) -> int:
        return self.prompt_tokens + self.output_tokens

    def prompts(self, vocab_size: int) -> list[list[int]]:
        rng = random.Random(0)
        last = min(30000, vocab_size)
        return [[rng.randrange(10, last) for _ in range(self.prompt_tokens)] for _ in range(self.sequences)]

    def cost(self, program: Program) -> Cost:
        """Cost of the steps whose time is counted: full prefill steps, then decode steps of all sequences
        together."""
        total = Cost()
        if self.counted != "later":
            for step in _prefill_steps(self.sequences, self.prompt_tokens):
                total = total + program.cost(step)
        for made in range(1, self.output_tokens):
            total = total + program.cost(_decode_step(self.sequences, self.prompt_tokens + made))
        return total


WORKLOADS = (
    Workload(name="decode-1", sequences=1, prompt_tokens=16, output_tokens=64, counted="output"),
    Workload(name="decode-8", sequences=8, prompt_tokens=16, output_tokens=64, counted="output"),
    Workload(name="mix-32", sequences=32, prompt_tokens=128, output_tokens=128, counted="all"),
    Workload(name="prefill-512", sequences=1, prompt_tokens=512, output_tokens=1, counted="prompt"),
    Workload(name="long-prefill-6000", sequences=1, prompt_tokens=6000, output_tokens=1, counted="prompt"),
    Workload(name="long-decode-6000", sequences=1, prompt_tokens=6000, output_tokens=33, counted="later"),
)


def _prefill_steps(sequences: int, prompt_tokens: int) -> list[StepShape]:
    """Whole prompts packed into steps of at most MAX_NUM_BATCHED_TOKENS, a longer one in chunks."""
    if prompt_tokens > MAX_NUM_BATCHED_TOKENS:
        starts = range(0, prompt_tokens, MAX_NUM_BATCHED_TOKENS)
        ends = [min(start + MAX_NUM_BATCHED_TOKENS, prompt_tokens) for start in starts]
        chunks = [
            _chunk(start, end, 1, end == prompt_tokens) for start, end in zip(starts, ends, strict=True)
        ]
        return chunks * sequences
    each = MAX_NUM_BATCHED_TOKENS // prompt_tokens
    counts = [min(each, sequences - i) for i in range(0, sequences, each)]
    return [_chunk(0, prompt_tokens, count, True) for count in counts]


def _chunk(start: int, end: int, sequences: int, last: bool) -> StepShape:
    length = end - start
    attended = length * start + length * (length + 1) // 2
    return StepShape(
        tokens=sequences * length,
        outputs=sequences if last else 0,
        attended=sequences * attended,
        context=sequences * end,
        sequences=sequences,
    )


def _decode_step(sequences: int, context: int) -> StepShape:
    seen = sequences * context
    return StepShape(tokens=sequences, outputs=sequences, attended=seen, context=seen, sequences=sequences)


@dataclass(frozen=True, kw_only=True)
class Result:
    """Best of the repeats; rates in tokens, 10^9 bytes and 10^9 operations a second."""

    name: str
    tokens_per_s: float
    gbps: float
    gflops: float


def measure(workload: Workload, generator: EngineGenerator, program: Program, *, repeats: int) -> Result:
    """The best of `repeats` runs."""
    prompts = workload.prompts(generator.vocab_size)
    seconds = min(_seconds(generator, prompts, workload.output_tokens) for _ in range(repeats))
    if workload.counted == "later":
        seconds -= min(_seconds(generator, prompts, 1) for _ in range(repeats))
    cost = workload.cost(program)
    return Result(
        name=workload.name,
        tokens_per_s=workload.tokens / seconds,
        gbps=(cost.weight_bytes + cost.kv_bytes) / seconds / 1e9,
        gflops=cost.flops / seconds / 1e9,
    )


def _seconds(generator: EngineGenerator, prompts: list[list[int]], output_tokens: int) -> float:
    start = time.perf_counter()
    generator.generate(prompts, output_tokens)
    return time.perf_counter() - start


def choose(names: Sequence[str] | None) -> list[Workload]:
    """Workloads by name, all without names. Raises UsageError for an unknown one."""
    known = {w.name: w for w in WORKLOADS}
    for name in names or ():
        if name not in known:
            raise UsageError(f"--workload {name}: choose from {', '.join(known)}")
    return [known[n] for n in names] if names else list(WORKLOADS)


@dataclass(frozen=True, kw_only=True)
class OfflineFigures:
    """Figures of one run; `too_long` names the workloads that the model has too few positions for."""

    model: str
    limits: Limits
    workloads: list[Result]
    too_long: list[str]


def format_figures(figures: OfflineFigures) -> str:
    limits = figures.limits

    def row(result: Result) -> list[str]:
        read, peak = result.gbps / limits.read_gbps, result.gflops / limits.peak_gflops
        rate = f"{result.tokens_per_s:.1f}"
        return [result.name, rate, f"{result.gbps:.1f}", f"{read:.0%}", f"{result.gflops:.0f}", f"{peak:.0%}"]

    header = ["workload", "tok/s", "GB/s", "of read limit", "GFLOP/s", "of peak"]
    lines = [
        f"{figures.model}; limits with {limits.threads} threads: {limits.read_gbps:.1f} GB/s streaming read, "
        f"{limits.peak_gflops:.0f} GFLOP/s",
        format_table(header, [row(r) for r in figures.workloads]),
    ]
    if figures.too_long:
        lines.append(f"left out, longer than the model's context: {', '.join(figures.too_long)}")
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class OfflineRun:
    """Workloads to measure. `names`: of WORKLOADS, or None for all; `threads`: None for all cores; `weights`,
    `kv_cache_dtype`, `activation_dtype`: as in EngineConfig."""

    names: Sequence[str] | None
    repeats: int
    threads: int | None = None
    weights: str = "auto"
    kv_cache_dtype: str = "auto"
    activation_dtype: str = "auto"


def run_offline(
    model_dir: Path, environment: Environment, run: OfflineRun, progress: Progress
) -> OfflineFigures:
    """Measure the machine, then the workloads that fit the model."""
    from firelane.bench.engine import EngineGenerator

    chosen = choose(run.names)
    limits = measure_limits(environment, threads=run.threads)
    config = EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        threads=run.threads,
        max_num_seqs=MAX_NUM_SEQS,
        max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS,
        prefix_cache=False,
        weights=run.weights,
        kv_cache_dtype=run.kv_cache_dtype,
        activation_dtype=run.activation_dtype,
    )
    generator = EngineGenerator.load(config, progress)
    try:
        generator.generate([[10] * 8], 4)
        fitting = [w for w in chosen if w.longest <= generator.max_model_len]
        results = [measure(w, generator, generator.program, repeats=run.repeats) for w in fitting]
    finally:
        generator.close()
    return OfflineFigures(
        model=model_dir.name,
        limits=limits,
        workloads=results,
        too_long=[w.name for w in chosen if w not in fitting],
    )
