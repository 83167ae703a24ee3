"""Decode and prefill on each instruction-set target of this machine, as shares of what the machine gives with
that target's instructions.

Bandwidth is that of streaming reads, counted for the bytes that the weights of a step take in their form; the
peak is the rate of the bf16 dot product where the target has it, else of float multiply-adds. Both are
measured right before and after a step: a shared machine drifts.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from firelane.backends.cpu import loader
from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.kernels import decode_inputs, decode_shape, random_tokens
from firelane.bench.table import format_table
from firelane.contract import StepInputs
from firelane.doctor.limits import Probe, build_probe
from firelane.engine.process.load import read_program
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.native.machine import cpu_identity, supported_isas
from firelane.program.program import Program
from firelane.program.values import StepShape
from firelane.weights.progress import Progress

DECODE_ROWS = (1, 8)
PREFILL_TOKENS = 512
ROUNDS = 3
LEAST_SECONDS = 0.3
"""Steps of a round are repeated for so long."""


@dataclass(frozen=True, kw_only=True)
class StepFigures:
    """Medians of the rounds. `of_read`, `of_peak`: shares of bandwidth and of the multiply-add rate."""

    isa: str
    step: str
    tokens_per_s: float
    of_read: float
    of_peak: float


def targets(names: Sequence[str]) -> tuple[str, ...]:
    """The targets that `names` mean: "all" are those that this machine runs. Raises UsageError for others."""
    supported = supported_isas(cpu_identity())
    if "all" in names:
        return supported
    unknown = [name for name in names if name not in supported]
    if unknown:
        raise UsageError(f"--isa {unknown[0]}: this CPU runs {', '.join(supported)}; choose some, or all")
    return tuple(names)


def prefill_inputs(executor: CpuExecutor, tokens: int) -> StepInputs:
    """One step that reads a prompt of `tokens` tokens and samples after it."""
    inputs = decode_inputs(executor, 1)
    blocks = -(-tokens // executor.limits.block_size)
    tables = executor.state.block_tables
    tables[:, 0, :blocks] = [[group * blocks + i for i in range(blocks)] for group in range(len(tables))]
    executor.state.tokens[0, :tokens] = random_tokens(executor.vocab_size, (tokens,))
    inputs.num_tokens = inputs.chunk_len[0] = tokens
    inputs.chunk_start[0] = 0
    inputs.row_token[0] = inputs.row_position[0] = tokens - 1
    return inputs


def prefill_shape(tokens: int) -> StepShape:
    attended = tokens * (tokens + 1) // 2
    return StepShape(tokens=tokens, outputs=1, attended=attended, context=tokens, sequences=1)


def step_seconds(executor: CpuExecutor, inputs: StepInputs) -> float:
    """Mean of some steps."""
    count, start = 0, time.perf_counter()
    while True:
        executor.submit(inputs)
        executor.wait()
        count += 1
        elapsed = time.perf_counter() - start
        if elapsed >= LEAST_SECONDS:
            return elapsed / count


@dataclass(frozen=True, kw_only=True)
class TargetRun:
    """One target's executor and probe."""

    isa: str
    program: Program
    executor: CpuExecutor
    probe: Probe
    threads: int

    def decode(self, rows: int) -> StepFigures:
        inputs = decode_inputs(self.executor, rows)
        return self._measure(f"decode {rows}", inputs, decode_shape(rows))

    def prefill(self, tokens: int) -> StepFigures:
        return self._measure(
            f"prefill {tokens}", prefill_inputs(self.executor, tokens), prefill_shape(tokens)
        )

    def _measure(self, name: str, inputs: StepInputs, shape: StepShape) -> StepFigures:
        cost = self.program.cost(shape)
        form = self.executor.weights_bytes / self.program.weights_bytes
        moved = form * cost.weight_bytes + cost.kv_bytes
        step_seconds(self.executor, inputs)
        rounds: list[tuple[float, float, float]] = []
        read, peak = self._limits()
        for _ in range(ROUNDS):
            seconds = step_seconds(self.executor, inputs)
            read_after, peak_after = self._limits()
            in_gbps, in_gflops = moved / seconds / 1e9, cost.flops / seconds / 1e9
            shares = in_gbps / max(read, read_after), in_gflops / max(peak, peak_after)
            rounds.append((shape.tokens / seconds, *shares))
            read, peak = read_after, peak_after
        speeds, reads, peaks = zip(*rounds, strict=True)
        return StepFigures(
            isa=self.isa,
            step=name,
            tokens_per_s=statistics.median(speeds),
            of_read=statistics.median(reads),
            of_peak=statistics.median(peaks),
        )

    def _limits(self) -> tuple[float, float]:
        """Streaming reads and multiply-adds, in 10^9 a second."""
        peak = self.probe.dot_gflops(self.threads) or self.probe.fma_gflops(self.threads)
        return self.probe.read_gbps(self.threads), peak


def run_target(
    isa: str, model_dir: Path, environment: Environment, config: EngineConfig, progress: Progress
) -> list[StepFigures]:
    program = read_program(config)
    executor = loader.load_for(replace(environment, isa=isa), program, model_dir, config, progress)
    run = TargetRun(
        isa=isa,
        program=program,
        executor=executor,
        probe=build_probe(environment, isa),
        threads=config.threads or cpu_identity().usable_cores,
    )
    executor.settle()
    try:
        return [*(run.decode(rows) for rows in DECODE_ROWS), run.prefill(PREFILL_TOKENS)]
    finally:
        executor.release()


def run_targets(
    model_dir: Path,
    environment: Environment,
    *,
    isas: Sequence[str],
    threads: int | None = None,
    weights: str = "auto",
    kv_cache_dtype: str = "auto",
    activation_dtype: str = "auto",
    progress: Progress,
) -> list[StepFigures]:
    """Measure one target after another. Raises UsageError for one that this machine lacks, and what loading
    raises."""
    config = EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        backend="cpu",
        threads=threads,
        max_num_seqs=max(DECODE_ROWS),
        max_num_batched_tokens=PREFILL_TOKENS,
        weights=weights,
        kv_cache_dtype=kv_cache_dtype,
        activation_dtype=activation_dtype,
    )
    figures: list[StepFigures] = []
    for isa in targets(isas):
        figures += run_target(isa, model_dir, environment, config, progress)
    return figures


def format_targets(figures: Sequence[StepFigures]) -> str:
    rows = [[f.isa, f.step, f"{f.tokens_per_s:.1f}", f"{f.of_read:.0%}", f"{f.of_peak:.0%}"] for f in figures]
    return format_table(["target", "step", "tok/s", "of bandwidth", "of its peak"], rows)
