"""Time of each kind of op on the CPU backend, by the number of rows of a step, against the machine's limits.

A step of R rows decodes R sequences, each with a context of CONTEXT_TOKENS tokens. The times are those that
the executor takes at the barrier after each op; ops of one kind and shape are one row of the table.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from firelane.backends.cpu.executor import CpuExecutor
from firelane.bench.table import format_table
from firelane.contract import SAMPLE, StepInputs
from firelane.doctor.limits import Limits, measure_limits
from firelane.engine.process.load import load_executor, read_program
from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import UsageError
from firelane.program.ops import Op
from firelane.program.program import Program
from firelane.program.values import StepShape, Weight
from firelane.weights.progress import Progress

ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXT_TOKENS = 128
WARM_STEPS, TIMED_STEPS = 3, 20


@dataclass(frozen=True, kw_only=True)
class KernelTime:
    """All ops of one kind and shape in a step of `rows` rows. `seconds` is their mean time in one step; rates
    in 10^9 bytes and operations a second."""

    op: str
    count: int
    rows: int
    seconds: float
    gbps: float
    gflops: float


@dataclass(frozen=True, kw_only=True)
class KernelFigures:
    limits: Limits
    kernels: list[KernelTime]


def describe(op: Op) -> str:
    """The op's kind, and its shape where it has weights: `Linear 2048x8192` is [out_features,
    in_features], with the number of experts before them."""
    matrices = [w.shape for w in op.weights if w.is_matrix]
    shape = "x".join(str(n) for n in matrices[0]) if matrices else ""
    return f"{type(op).__name__} {shape}".strip()


def decode_shape(rows: int, context: int = CONTEXT_TOKENS) -> StepShape:
    seen = rows * context
    return StepShape(tokens=rows, outputs=rows, attended=seen, context=seen, sequences=rows)


def as_in_checkpoint(weight: Weight) -> int:
    return weight.nbytes


def group_times(
    program: Program,
    rows: int,
    op_seconds: Sequence[float],
    stored: Callable[[Weight], int] = as_in_checkpoint,
) -> list[KernelTime]:
    """`op_seconds[i]`: time of the program's op i in one step; `stored`: bytes of a weight in memory.
    In order of first appearance."""
    shape = decode_shape(rows)
    groups: dict[str, list[int]] = {}
    for index, op in enumerate(program.ops):
        groups.setdefault(describe(op), []).append(index)
    made: list[KernelTime] = []
    for name, members in groups.items():
        seconds = max(float(sum(op_seconds[i] for i in members)), 1e-12)
        costs = [program.ops[i].cost(shape) for i in members]
        moved = sum(
            _form(program.ops[i], stored) * c.weight_bytes + c.kv_bytes
            for i, c in zip(members, costs, strict=True)
        )
        made.append(
            KernelTime(
                op=name,
                count=len(members),
                rows=rows,
                seconds=seconds,
                gbps=moved / seconds / 1e9,
                gflops=sum(c.flops for c in costs) / seconds / 1e9,
            )
        )
    return made


def _form(op: Op, stored: Callable[[Weight], int]) -> float:
    """Bytes of the op's weights in memory over those in the program's terms."""
    return sum(map(stored, op.weights)) / max(sum(map(as_in_checkpoint, op.weights)), 1)


def random_tokens(vocab_size: int, shape: tuple[int, ...]) -> NDArray[np.int32]:
    """Different ones in each row: the same token would take each row to the same experts."""
    return np.random.default_rng(0).integers(0, vocab_size, shape, np.int32)


def decode_inputs(executor: CpuExecutor, rows: int, context: int = CONTEXT_TOKENS) -> StepInputs:
    """One step that decodes `rows` sequences at position context - 1, each with blocks of its own."""
    limits, state = executor.limits, executor.state
    blocks = -(-context // limits.block_size)
    shape = len(limits.spans), rows, blocks
    if math.prod(shape) > limits.num_blocks or limits.max_model_len < context:
        most = limits.num_blocks // (len(limits.spans) * blocks)
        raise UsageError(f"--rows {rows}: the KV cache has room for {most} sequences")
    inputs = StepInputs.allocate(limits)
    inputs.num_chunks = inputs.num_tokens = inputs.num_rows = rows
    numbers = np.arange(rows, dtype=np.int32)
    inputs.chunk_slot[:rows] = inputs.row_slot[:rows] = inputs.row_token[:rows] = numbers
    inputs.chunk_from[:rows] = numbers
    inputs.chunk_start[:rows] = inputs.row_position[:rows] = context - 1
    inputs.chunk_len[:rows] = 1
    inputs.row_kind[:rows] = SAMPLE
    state.tokens[:rows] = random_tokens(executor.vocab_size, state.tokens[:rows].shape)
    state.block_tables[:, :rows, :blocks] = np.arange(math.prod(shape)).reshape(shape)
    state.sampling[:rows] = np.zeros(1, state.sampling.dtype)
    for field, off in (("top_p", 1.0), ("repetition_penalty", 1.0), ("logprobs", -1)):
        state.sampling[field][:rows] = off
    return inputs


def measure(executor: CpuExecutor, program: Program, rows: int) -> list[KernelTime]:
    inputs = decode_inputs(executor, rows)
    for step in range(WARM_STEPS + TIMED_STEPS):
        if step == WARM_STEPS:
            executor.op_seconds[:] = 0
        executor.submit(inputs)
        executor.wait()
    return group_times(program, rows, [s / TIMED_STEPS for s in executor.op_seconds[:-1]], executor.bytes_of)


def run_kernels(
    model_dir: Path,
    environment: Environment,
    *,
    rows: Sequence[int],
    threads: int | None = None,
    weights: str = "auto",
    kv_cache_dtype: str = "auto",
    activation_dtype: str = "auto",
    progress: Progress,
) -> KernelFigures:
    """Measure the machine, then the ops, with `weights`, `kv_cache_dtype` and `activation_dtype` as in
    EngineConfig. Raises UsageError where `rows` do not fit, and what loading raises."""
    limits = measure_limits(environment, threads=threads)
    most = max(rows)
    config = EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        backend="cpu",
        threads=threads,
        max_num_seqs=most,
        max_num_batched_tokens=max(most, 512),
        weights=weights,
        kv_cache_dtype=kv_cache_dtype,
        activation_dtype=activation_dtype,
    )
    program = read_program(config)
    executor = load_executor(config, progress)
    try:
        assert isinstance(executor, CpuExecutor)
        executor.settle()
        kernels = [time for count in rows for time in measure(executor, program, count)]
    finally:
        executor.release()
    return KernelFigures(limits=limits, kernels=kernels)


def format_kernels(figures: KernelFigures) -> str:
    limits = figures.limits

    def row(time: KernelTime) -> list[str]:
        return [
            f"{time.op} (x{time.count})",
            str(time.rows),
            f"{time.seconds * 1e6 / time.count:.1f}",
            f"{time.gbps:.1f}",
            f"{time.gbps / limits.read_gbps:.0%}",
            f"{time.gflops:.1f}",
            f"{time.gflops / limits.peak_gflops:.0%}",
        ]

    header = ["op (x how many)", "rows", "us each", "GB/s", "of read limit", "GFLOP/s", "of peak"]
    return "\n".join(
        [
            f"limits with {limits.threads} threads: {limits.read_gbps:.1f} GB/s streaming read, "
            f"{limits.peak_gflops:.0f} GFLOP/s; each step decodes, context {CONTEXT_TOKENS}",
            format_table(header, [row(t) for t in figures.kernels]),
        ]
    )
