"""Speed in the step: executors of all forms in one process, driven in turns.

A shared machine's memory bandwidth drifts within seconds: only turns that lie beside each other can be
compared, and the streaming-read limit is measured between them. The order of the forms changes from round to
round.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from lossless_figures import BF16, Conditions, Step, Steps, rotated
from lossless_forms import load_form

from firelane import env
from firelane.backends.cpu.executor import CpuExecutor
from firelane.contract import SAMPLE, StepInputs
from firelane.doctor.limits import Probe, build_probe
from firelane.engine_config import WEIGHTS, EngineConfig
from firelane.models.config.reader import read_config
from firelane.models.registry import load_program
from firelane.native.machine import cpu_identity
from firelane.program.program import Program
from firelane.program.values import StepShape

BLOCK_TOKENS = 32
CONTEXT = 32  # tokens before the first step of decoding
ROUND_TOKENS = 16  # steps of decoding in a round, at most
MAX_SEQS = 64
SEQUENCE_BLOCKS = -(-(CONTEXT + ROUND_TOKENS) // BLOCK_TOKENS)
Chunk = tuple[int, int, int]
"""slot, first position, tokens"""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """rows: sequences that decode together; prefill: tokens of a prompt, 0 for none."""

    rows: Sequence[int]
    prefill: int
    rounds: int
    threads: int | None


class Driver:
    """Runs steps on an executor, all sequences greedy and their tokens random. Owns the executor."""

    def __init__(self, executor: CpuExecutor) -> None:
        self.executor = executor
        self.last_tokens: list[int] = []
        self._inputs = StepInputs.allocate(executor.limits)
        self._fill_slots()

    def _fill_slots(self) -> None:
        limits, state = self.executor.limits, self.executor.state
        for name, value in {"top_p": 1, "repetition_penalty": 1, "logprobs": -1}.items():
            state.sampling[name] = value
        last = min(30000, self.executor.vocab_size)
        state.tokens[:] = np.random.default_rng(0).integers(min(10, last - 1), last, state.tokens.shape)
        # Of the decoding sequences each has its own blocks; the prompt's lie over those of the first few.
        first = np.arange(limits.max_num_seqs)[:, None] * SEQUENCE_BLOCKS
        state.block_tables[:] = (first + np.arange(limits.blocks_per_seq)) % limits.num_blocks

    def decode(self, rows: int, steps: int) -> float:
        """Seconds of a step; one more, before, wakes the threads."""
        self._step([(slot, CONTEXT, 1) for slot in range(rows)])
        began_s = time.perf_counter()
        for step in range(steps):
            self._step([(slot, CONTEXT + step, 1) for slot in range(rows)])
        return (time.perf_counter() - began_s) / steps

    def prefill(self, tokens: int) -> float:
        """Seconds of one prompt's step."""
        began_s = time.perf_counter()
        self._step([(0, 0, tokens)])
        return time.perf_counter() - began_s

    def _step(self, chunks: Sequence[Chunk]) -> None:
        inputs, end = self._inputs, 0
        for i, (slot, start, length) in enumerate(chunks):
            inputs.chunk_slot[i], inputs.chunk_start[i], inputs.chunk_len[i] = slot, start, length
            end += length
            inputs.row_token[i], inputs.row_slot[i] = end - 1, slot
            inputs.row_position[i], inputs.row_kind[i] = start + length - 1, SAMPLE
        inputs.num_chunks, inputs.num_tokens, inputs.num_rows = len(chunks), end, len(chunks)
        self.executor.submit(inputs)
        self.last_tokens = self.executor.wait().tokens[: len(chunks)].tolist()


class Notes(logging.Handler):
    """Collects what the backend logs while it loads: warnings above all."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []
        logger = logging.getLogger("firelane.backends")
        logger.setLevel(logging.INFO)
        logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage().replace(str(env.read().cache_dir), "$FIRELANE_CACHE_DIR")
        print(text, file=sys.stderr, flush=True)
        self.lines += text.splitlines()


def measure_steps(model_dir: Path, forms: Sequence[str], plan: Plan) -> Steps:
    """`forms`: bf16 first. All stay in memory at the same time."""
    program = load_program(read_config(model_dir))
    drivers: dict[str, Driver] = {}
    notes = Notes()
    for form in forms:
        plain = drivers[BF16].executor if drivers else None
        config = config_of(model_dir, program, form, plan)
        drivers[form] = Driver(load_form(config, program, form, plain))
    probe = build_probe(env.read())
    try:
        steps = [_measure(program, drivers, probe, kind, plan) for kind in kinds(program, plan)]
    finally:
        for driver in drivers.values():
            driver.executor.release()
    return Steps(
        conditions=Conditions.now(),
        threads=plan.threads or cpu_identity().usable_cores,
        weights=sum(w.nbytes // w.dtype.itemsize for w in program.weights),
        checkpoint_bytes=program.weights_bytes,
        resident_bytes={form: d.executor.weights_bytes for form, d in drivers.items()},
        forms={form: describe(d.executor, program) for form, d in drivers.items()},
        notes=notes.lines,
        steps=steps,
    )


def config_of(model_dir: Path, program: Program, form: str, plan: Plan) -> EngineConfig:
    """Room for MAX_SEQS short sequences and one prompt."""
    longest = min(program.max_model_len, max(plan.prefill, CONTEXT + ROUND_TOKENS))
    tokens = max(MAX_SEQS * SEQUENCE_BLOCKS * BLOCK_TOKENS, longest + BLOCK_TOKENS)
    return EngineConfig(
        model_dir=model_dir,
        cache_dir=env.read().cache_dir,
        threads=plan.threads,
        max_num_seqs=MAX_SEQS,
        max_num_batched_tokens=max(plan.prefill, MAX_SEQS),
        max_model_len=longest,
        kv_cache_bytes=tokens * len(program.spans) * program.kv_bytes_per_token,
        block_size=BLOCK_TOKENS,
        weights=form if form in WEIGHTS else BF16,
    )


def describe(executor: CpuExecutor, program: Program) -> str:
    """Say how many matrices lie in each form."""
    forms = executor.layout.forms
    matrices = [w for w in program.weights if len(w.shape) == 2]
    counts = Counter(forms[w.name].value if w.name in forms else "plain" for w in matrices)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


@dataclass(frozen=True, kw_only=True)
class Kind:
    name: str
    rows: int
    shape: StepShape
    run: Callable[[Driver], float]
    prefill: bool = False


def kinds(program: Program, plan: Plan) -> Iterator[Kind]:
    for rows in plan.rows:
        count = max(2, ROUND_TOKENS // (2 + rows // 4))
        seen = rows * (CONTEXT + count // 2 + 1)
        shape = StepShape(tokens=rows, outputs=rows, attended=seen, context=seen, sequences=rows)
        yield Kind(
            name=f"decode, {rows}", rows=rows, shape=shape, run=lambda d, n=rows, c=count: d.decode(n, c)
        )
    n = min(plan.prefill, program.max_model_len)
    if n:
        shape = StepShape(tokens=n, outputs=1, attended=n * (n + 1) // 2, context=n, sequences=1)
        yield Kind(name=f"prefill, {n}", rows=n, shape=shape, run=lambda d: d.prefill(n), prefill=True)


def _measure(program: Program, drivers: dict[str, Driver], probe: Probe, kind: Kind, plan: Plan) -> Step:
    threads = plan.threads or cpu_identity().usable_cores
    seconds: dict[str, list[float]] = {form: [] for form in drivers}
    limits: list[float] = []
    for driver in drivers.values():
        kind.run(driver)  # the first touch
    check_same_tokens(drivers, kind.name)
    for turn in range(plan.rounds):
        limits.append(probe.read_gbps(threads))
        for form in rotated(list(drivers), turn):
            seconds[form].append(kind.run(drivers[form]))
    print(kind.name, {f: f"{min(s) * 1e3:.2f} ms" for f, s in seconds.items()}, file=sys.stderr, flush=True)
    return Step(
        name=kind.name,
        rows=kind.rows,
        prefill=kind.prefill,
        seconds=seconds,
        moved_bytes=moved_bytes(program, {f: d.executor for f, d in drivers.items()}, kind.shape),
        read_gbps=limits,
    )


def check_same_tokens(drivers: dict[str, Driver], where: str) -> None:
    """All have computed the same steps: forms must not change what comes out."""
    for form, driver in drivers.items():
        if driver.last_tokens != drivers[BF16].last_tokens:
            raise SystemExit(f"{where}: {form} gives other tokens than {BF16}")


def moved_bytes(program: Program, executors: dict[str, CpuExecutor], shape: StepShape) -> dict[str, float]:
    """Return the bytes that a step moves, by form: those of the Program's cost for bf16, less those that the
    form saves in weights that products read. Products read all of the saved bytes where the embedding is
    tied, else about their share of the weights that have a form."""
    cost = program.cost(shape)
    plain, resident = cost.weight_bytes + cost.kv_bytes, executors[BF16].weights_bytes
    return {f: plain - (resident - e.weights_bytes) * read_share(program, e) for f, e in executors.items()}


def read_share(program: Program, executor: CpuExecutor) -> float:
    """Return the share of the bytes of weights in a form that products read."""
    formed = [w for w in program.weights if w.name in executor.layout.forms]
    products = {product.weight for product in program.products}
    return sum(w.nbytes for w in formed if w in products) / max(1, sum(w.nbytes for w in formed))
