"""Whole steps of a model of Llama-8B's shape with random weights, against the device's limits.

cuda_steps.py [--forms bf16 lossless library] [--layers N] [--cache-dir DIR] [--out DIR]

Decode of 1, 8, 64 and 200 sequences, each with 512 tokens of context, and a prompt of 8192 tokens, in one
step and in steps of 2048. A step is timed from submit() to the end of wait(), with nothing prepared in
between: what the engine overlaps is not overlapped here. `library` is bf16 with the vendor's products
(gemm = library): what invariance costs. It is said whether every form drew the tokens that bf16 drew, and
each sequence those that it drew alone; of `library` neither is expected.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cuda_clock import GraphClock, open_device
from cuda_drive import Chunk, Driver, StepTimes, decoding, limits_for, shape_of
from cuda_engine import Built, random_executor
from cuda_limits import Limits, measure_limits
from cuda_limits import table as limits_table
from cuda_llama import LLAMA_8B, program_of
from cuda_report import Table, add_cache_dir, parser, percent, publish, run_main

from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.linear_config import MeasuredTable
from firelane.backends.cuda.tuning import store
from firelane.contract import StepLimits
from firelane.program.program import Program
from firelane.program.values import StepShape

FORMS = {
    "bf16": ("bf16", "invariant"),
    "lossless": ("lossless", "invariant"),
    "library": ("bf16", "library"),
}
"""By name: weights and gemm."""
SEQUENCES = (1, 8, 64, 200)
CONTEXT = 512
STEPS = 20
PROMPT = 8192
STEP_TOKENS = 2048
GIB = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The sizes of a run. slots: sequences that there is room for; sequences: decode so many at once;
    context: tokens before them; steps: of each. tuned: as store.read() gives it."""

    slots: int = 256
    sequences: Sequence[int] = SEQUENCES
    context: int = CONTEXT
    steps: int = STEPS
    prompt: int = PROMPT
    step_tokens: int = STEP_TOKENS
    tuned: MeasuredTable | None = None

    def limits(self) -> StepLimits:
        return limits_for(
            sequences=self.slots,
            longest=max(self.prompt, self.context + self.steps + 1),
            step_tokens=max(self.prompt, self.context, self.slots),
            kept_tokens=self.context + self.steps + 1,
        )


@dataclass(frozen=True, kw_only=True)
class Decode:
    """times: the median step; roofline_s: the shortest that the limits allow."""

    form: str
    sequences: int
    times: StepTimes
    roofline_s: float

    @property
    def tokens_per_s(self) -> float:
        return self.sequences / self.times.turn

    @property
    def share(self) -> float:
        return self.roofline_s / self.times.turn


@dataclass(frozen=True, kw_only=True)
class Prefill:
    form: str
    tokens: int
    step_tokens: int
    seconds: float
    flops: float

    @property
    def tflops(self) -> float:
        return self.flops / self.seconds / 1e12


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of the device: planned, weights, buffers and KV cache together; used, as the device says."""

    form: str
    weights: int
    planned: int
    used: int


@dataclass(frozen=True, kw_only=True)
class Figures:
    limits: Limits
    decodes: list[Decode]
    prefills: list[Prefill]
    memory: list[Memory]
    agreements: list[str]


@dataclass(frozen=True, kw_only=True)
class Form:
    """The figures of one form, and what it drew, step by step, by number of sequences."""

    decodes: list[Decode]
    prefills: list[Prefill]
    memory: Memory
    drawn: dict[int, list[list[int]]]


def build(program: Program, plan: Plan, device: Device, form: str) -> Built:
    mode, gemm = FORMS[form]
    return random_executor(program, plan.limits(), device, mode=mode, gemm=gemm, tuned=plan.tuned)


def measure_form(form: str, program: Program, device: Device, plan: Plan, limits: Limits) -> Form:
    before = device.free_bytes()
    built = build(program, plan, device, form)
    executor = built.executor
    try:
        memory = Memory(
            form=form,
            weights=executor.weights_bytes,
            planned=built.planned_bytes,
            used=before - device.free_bytes(),
        )
        driver = Driver(executor)
        drawn: dict[int, list[list[int]]] = {}
        decodes = [_decode(form, driver, program, n, plan, limits, drawn) for n in plan.sequences]
        prefills = [
            _prefill(form, driver, program, plan.prompt, size) for size in (plan.prompt, plan.step_tokens)
        ]
    finally:
        executor.release()
    return Form(decodes=decodes, prefills=prefills, memory=memory, drawn=drawn)


def _decode(
    form: str,
    driver: Driver,
    program: Program,
    sequences: int,
    plan: Plan,
    limits: Limits,
    drawn: dict[int, list[list[int]]],
) -> Decode:
    """Fills the context first, so that what is attended is there."""
    for slot in range(sequences):
        driver.prefill(slot, plan.context, plan.context)
    drawn[sequences], times = driver.decode(sequences, plan.context, plan.steps)
    shape = shape_of(decoding(sequences, plan.context + plan.steps // 2))
    return Decode(
        form=form,
        sequences=sequences,
        times=median(times),
        roofline_s=limits.seconds(*needs(driver.executor, program, shape)),
    )


def _prefill(form: str, driver: Driver, program: Program, tokens: int, step_tokens: int) -> Prefill:
    driver.prefill(0, tokens, step_tokens)
    seconds = min(driver.prefill(0, tokens, step_tokens) for _ in range(3))
    chunk: Chunk = (0, 0, tokens)
    flops = program.cost(shape_of([chunk])).flops
    return Prefill(form=form, tokens=tokens, step_tokens=step_tokens, seconds=seconds, flops=flops)


def needs(executor: Any, program: Program, shape: StepShape) -> tuple[float, float]:
    """Bytes and operations of a step: as the Program says, with the matrices' bytes in their form."""
    cost = program.cost(shape)
    products = {product.weight for product in program.products}
    others = {w for w in program.weights if w not in products}
    held = executor.weights_bytes - sum(w.nbytes for w in others)
    plain = sum(w.nbytes for w in products)
    return cost.weight_bytes - plain + held + cost.kv_bytes, cost.flops


def median(times: Sequence[StepTimes]) -> StepTimes:
    return StepTimes(
        turn=statistics.median(t.turn for t in times),
        submit=statistics.median(t.submit for t in times),
        wait=statistics.median(t.wait for t in times),
    )


def agreements(forms: dict[str, Form]) -> list[str]:
    """Compare the forms' tokens; return a line for each comparison and its result."""
    first = next(iter(forms))
    found: list[str] = []
    for name, form in forms.items():
        firsts = [[step[0] for step in steps] for steps in form.drawn.values()]
        same = all(tokens == firsts[0] for tokens in firsts)
        found.append(
            f"{name}: a sequence drew {'the same' if same else 'OTHER'} tokens in batches of all sizes"
        )
        if name != first:
            equal = form.drawn == forms[first].drawn
            found.append(f"{name}: {'the same tokens as' if equal else 'OTHER tokens than'} {first}")
    return found


def decode_table(decodes: Sequence[Decode]) -> Table:
    plain = {d.sequences: d.times.turn for d in decodes if d.form == "bf16"}
    rows = [
        [
            f"{d.form}, {d.sequences} x 1",
            f"{d.times.turn * 1e3:.3f}",
            f"{d.tokens_per_s:.0f}",
            percent(d.share),
            f"{plain[d.sequences] / d.times.turn:.2f}x" if d.sequences in plain else "",
            f"{d.times.submit * 1e6:.0f}",
            f"{d.times.wait * 1e6:.0f}",
        ]
        for d in decodes
    ]
    header = ["decode", "ms a step", "tok/s", "of the roofline", "to bf16", "submit us", "wait us"]
    return Table(title=f"Decode, {CONTEXT} tokens of context", header=header, rows=rows)


def prefill_table(prefills: Sequence[Prefill], limits: Limits) -> Table:
    rows = [
        [
            f"{p.form}, {p.tokens} tokens in steps of {p.step_tokens}",
            f"{p.seconds * 1e3:.1f}",
            f"{p.tokens / p.seconds:.0f}",
            f"{p.tflops:.0f}",
            percent(p.tflops / limits.bf16_tflops),
        ]
        for p in prefills
    ]
    return Table(
        title="Prefill", header=["prompt", "ms", "tok/s", "TFLOP/s", "of the matmul rate"], rows=rows
    )


def gemm_table(figures: Figures) -> Table:
    """Make the table of the cost of invariance: the time of our products over the library's, minus one."""

    def cost(ours: float, library: float) -> str:
        return f"{100 * (ours / library - 1):+.1f}%"

    rows: list[list[str]] = []
    by_size = {(d.form, d.sequences): d.times.turn for d in figures.decodes}
    rows += [
        [f"decode, {n} x 1", cost(seconds, by_size["library", n])]
        for (form, n), seconds in by_size.items()
        if form == "bf16" and ("library", n) in by_size
    ]
    by_step = {(p.form, p.step_tokens): p.seconds for p in figures.prefills}
    rows += [
        [f"prefill in steps of {n}", cost(seconds, by_step["library", n])]
        for (form, n), seconds in by_step.items()
        if form == "bf16" and ("library", n) in by_step
    ]
    return Table(title="Cost of invariant products", header=["step", "to the library's"], rows=rows)


def memory_table(memory: Sequence[Memory]) -> Table:
    rows = [
        [
            m.form,
            f"{m.weights / GIB:.2f}",
            f"{m.planned / GIB:.2f}",
            f"{m.used / GIB:.2f}",
            f"{(m.used - m.planned) / GIB:+.2f}",
        ]
        for m in memory
    ]
    header = ["GiB", "weights", "planned", "used", "graphs, kernels"]
    return Table(title="Memory of the device", header=header, rows=rows)


def tables(figures: Figures) -> list[Table]:
    found = [
        limits_table(figures.limits),
        decode_table(figures.decodes),
        prefill_table(figures.prefills, figures.limits),
    ]
    if any(d.form == "library" for d in figures.decodes):
        found.append(gemm_table(figures))
    memory = memory_table(figures.memory)
    notes = [*memory.notes, *(f"- {line}" for line in figures.agreements)]
    return [*found, Table(title=memory.title, header=memory.header, rows=memory.rows, notes=notes)]


def measure(
    program: Program, forms: Sequence[str], device: Device, plan: Plan, limits: Limits
) -> Iterator[Figures]:
    """Yield all figures so far after each form."""
    found: dict[str, Form] = {}
    for form in forms:
        found[form] = measure_form(form, program, device, plan, limits)
        yield Figures(
            limits=limits,
            decodes=[d for form in found.values() for d in form.decodes],
            prefills=[p for form in found.values() for p in form.prefills],
            memory=[form.memory for form in found.values()],
            agreements=agreements(found),
        )


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    add_cache_dir(made)
    made.add_argument("--forms", nargs="+", choices=list(FORMS), default=list(FORMS))
    made.add_argument("--layers", type=int, metavar="N", help="default: 32")
    made.add_argument("--same-bits", action="store_true", help="fail where tokens are others than they were")
    return made.parse_args(given)


def main() -> None:
    arguments = arguments_of()
    device = open_device()
    limits = measure_limits(device, GraphClock(device))
    program = program_of(LLAMA_8B, layers=arguments.layers)
    plan = Plan(tuned=arguments.cache_dir and store.read(arguments.cache_dir, device.name))
    for figures in measure(program, arguments.forms, device, plan, limits):
        publish("cuda_steps", tables(figures), figures, arguments)
        if arguments.same_bits:
            check_agreements(figures.agreements)


def check_agreements(found: Sequence[str]) -> None:
    """Raises SystemExit with what does not agree."""
    others = [line for line in found if "OTHER" in line]
    if others:
        raise SystemExit("; ".join(others))


if __name__ == "__main__":
    run_main(main)
