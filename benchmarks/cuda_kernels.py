"""Time of each kind of op in a step, by its size, against the bytes or the operations that it needs.

cuda_kernels.py [--layers N] [--rows N ...] [--cache-dir DIR] [--out DIR]

A model of Llama-8B's shape with few layers and random weights, lowered as the backend lowers it. All layers'
launches of one kind run behind each other in one graph, so that no layer finds its weights in the cache. Rows
up to 256 decode, each with 512 tokens of context; more are prompts of at most 2048 tokens each.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import torch
from cuda_clock import Clock, GraphClock, open_device
from cuda_drive import Chunk, decoding, fill_slots, limits_for, shape_of, write_chunks
from cuda_engine import THREADS
from cuda_limits import Limits, measure_limits
from cuda_limits import table as limits_table
from cuda_llama import LLAMA_8B, program_of, random_weights
from cuda_report import Table, add_cache_dir, parser, percent, publish, run_main

from firelane.backends.cuda.assembly import product_plan
from firelane.backends.cuda.device.device import Device
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import MeasuredTable
from firelane.backends.cuda.executor import run
from firelane.backends.cuda.kernels.rows.prepare_inputs import prepare_inputs
from firelane.backends.cuda.lowering.buckets import Bucket
from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.backends.cuda.lowering.launches import lower
from firelane.backends.cuda.lowering.lowering import Lowering
from firelane.backends.cuda.lowering.product_plan import ProductPlan
from firelane.backends.cuda.lowering.step_memory import Sizes, StepMemory
from firelane.backends.cuda.step.staging import Stager
from firelane.backends.cuda.tuning import store
from firelane.backends.cuda.weights.device_weights import DeviceWeights
from firelane.backends.cuda.weights.matrices import PlainMatrix
from firelane.contract import StepInputs, StepLimits
from firelane.program.ops import Op
from firelane.program.program import Program
from firelane.program.values import Cost, StepShape

ROWS = (1, 8, 32, 64, 128, 256, 2048, 8192)
MOST_DECODING = 256
CONTEXT = 512
PROMPT = 2048
LAYERS = 8
FORMS = ("bf16", "lossless")


@dataclass(frozen=True, kw_only=True)
class Row:
    """One kind of op in one step. seconds: of one op; nbytes, flops: what it needs at least; library_s: the
    vendor's product of the same shape, None where it is no product of plain weights."""

    form: str
    rows: int
    kind: str
    count: int
    seconds: float
    nbytes: float
    flops: float
    library_s: float | None = None

    def share(self, limits: Limits) -> float:
        """Return the row's speed as a share of the roofline."""
        return limits.seconds(self.nbytes, self.flops) / self.seconds


@dataclass(frozen=True, kw_only=True)
class Figures:
    limits: Limits
    rows: list[Row]


def chunks_of(rows: int) -> list[Chunk]:
    if rows <= MOST_DECODING:
        return decoding(rows, CONTEXT)
    return [(i, 0, min(PROMPT, rows - at)) for i, at in enumerate(range(0, rows, PROMPT))]


def bucket_of(chunks: Sequence[Chunk]) -> Bucket:
    tokens = sum(length for _, _, length in chunks)
    return Bucket(tokens=tokens, rows=len(chunks), chunks=len(chunks), decode=tokens == len(chunks))


def kind_of(op: Op) -> str:
    """Return the name of a product's matrix without the layer (qkv, output, gate_up, down, lm_head), or the
    type of another op."""
    return op.products[0].weight.name.rpartition(".")[2] if op.products else type(op).__name__


@dataclass(kw_only=True)
class Bench:
    """A model on the device, in one form, with room for every step that is measured."""

    program: Program
    device: Device
    clock: Clock
    form: str
    weights: DeviceWeights
    plan: ProductPlan
    limits: StepLimits
    memory: StepMemory
    tile_tokens: int

    @classmethod
    def make(
        cls,
        program: Program,
        device: Device,
        clock: Clock,
        *,
        form: str,
        rows: Sequence[int],
        tuned: MeasuredTable | None,
    ) -> Bench:
        weights = random_weights(program, device, mode=form)
        plan = product_plan(program, weights, tuned, "invariant")
        steps = [chunks_of(n) for n in rows]
        longest = max(start + length for chunks in steps for _, start, length in chunks)
        limits = limits_for(
            sequences=max(map(len, steps)), longest=longest, step_tokens=max(rows), kept_tokens=CONTEXT + 1
        )
        buckets = [bucket_of(chunks) for chunks in steps]
        sizes = Sizes(program=program, limits=limits, scratch=plan.scratch(buckets))
        memory = StepMemory.allocate(sizes, device)
        fill(memory)
        fill_slots(memory.state.slots(), limits, program.vocab_size)
        return cls(
            program=program,
            device=device,
            clock=clock,
            form=form,
            weights=weights,
            plan=plan,
            limits=limits,
            memory=memory,
            tile_tokens=sizes.tile_tokens,
        )

    def compile(self, rows: Sequence[int]) -> None:
        """All kernels of steps of so many rows, in threads."""
        steps = [chunks_of(n) for n in rows]
        lowered = [self._lowered(bucket_of(chunks), shape_of(chunks))[0] for chunks in steps]
        compile_all(chain.from_iterable(w for works in lowered for w in works.values()), threads=THREADS)

    def measure(self, rows: int) -> list[Row]:
        """Every kind of op in a step of so many rows, then the whole step."""
        chunks = chunks_of(rows)
        self._stage(chunks)
        works, costs = self._lowered(bucket_of(chunks), shape_of(chunks))
        found = [self._row(rows, kind, works[kind], costs[kind]) for kind in works]
        whole = [work for works_of in works.values() for work in works_of]
        total = sum((cost for costs_of in costs.values() for cost in costs_of), Cost())
        return [*found, self._row(rows, "all together", whole, [total])]

    def _stage(self, chunks: Sequence[Chunk]) -> None:
        """The step's tables, on the device."""
        inputs = StepInputs.allocate(self.limits)
        write_chunks(inputs, chunks)
        Stager(self.memory.tables, tile_tokens=self.tile_tokens).write(inputs)
        bucket = bucket_of(chunks)
        prepare_inputs(
            self.memory.tables,
            self.memory.state,
            block_size=self.limits.block_size,
            tile_tokens=self.tile_tokens,
            max_chunks=bucket.chunks,
            max_rows=bucket.rows,
        ).run()

    def _lowered(
        self, bucket: Bucket, shape: StepShape
    ) -> tuple[dict[str, list[Work]], dict[str, list[Cost]]]:
        """Launches and costs by kind, in the program's order."""
        to = Lowering(
            program=self.program,
            bucket=bucket,
            memory=self.memory,
            weights=self.weights,
            products=self.plan,
            num_sms=self.device.num_sms,
            tile_tokens=self.tile_tokens,
        )
        works: dict[str, list[Work]] = defaultdict(list)
        costs: dict[str, list[Cost]] = defaultdict(list)
        for op in self.program.ops:
            works[kind_of(op)] += lower(op, to)
            costs[kind_of(op)].append(self._cost(op, shape))
        return works, costs

    def _cost(self, op: Op, shape: StepShape) -> Cost:
        """Return the op's cost in the Program, with the bytes that its weights have in this form."""
        cost = op.cost(shape)
        if op.products:
            read = sum(self.weights.matrix(product.weight.name).nbytes for product in op.products)
            return Cost(cost.flops, float(read), cost.kv_bytes)
        return cost

    def _row(self, rows: int, kind: str, works: Sequence[Work], costs: Sequence[Cost]) -> Row:
        count = len(costs)
        total = sum(costs, Cost())
        return Row(
            form=self.form,
            rows=rows,
            kind=kind,
            count=count,
            seconds=self.clock.seconds(lambda: run(works)) / count,
            nbytes=(total.weight_bytes + total.kv_bytes) / count,
            flops=total.flops / count,
            library_s=self._library(rows, kind),
        )

    def _library(self, rows: int, kind: str) -> float | None:
        """Seconds of the vendor's product with the same matrices, all of this kind behind each other."""
        used = [p.weight for op in self.program.ops if kind_of(op) == kind for p in op.products]
        matrices = [self.weights.matrix(weight.name) for weight in used]
        plain = [m.data for m in matrices if isinstance(m, PlainMatrix)]
        if not plain or len(plain) < len(matrices):
            return None
        height = len(chunks_of(rows)) if kind == "lm_head" else rows
        x = self.device.empty(height, plain[0].shape[1], dtype=plain[0].dtype).normal_()
        out = self.device.empty(height, plain[0].shape[0], dtype=plain[0].dtype)
        return self.clock.seconds(partial(multiply_all, x, plain, out)) / len(plain)


def multiply_all(x: torch.Tensor, matrices: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    for matrix in matrices:
        torch.mm(x, matrix.T, out=out)


def fill(memory: StepMemory) -> None:
    """Random numbers of the size that activations have: the power that a product takes depends on them."""
    for tensor in (*memory.values.values(), memory.pages.pool):
        tensor.normal_()


def table(form: str, rows: Sequence[Row], limits: Limits) -> Table:
    header = ["op", "rows", "us each", "GB/s", "TFLOP/s", "of the limit", "library us"]
    cells = [
        [
            row.kind,
            str(row.rows),
            f"{row.seconds * 1e6:.1f}",
            f"{row.nbytes / row.seconds / 1e9:.0f}",
            f"{row.flops / row.seconds / 1e12:.1f}",
            percent(row.share(limits)),
            "" if row.library_s is None else f"{row.library_s * 1e6:.1f}",
        ]
        for row in rows
    ]
    return Table(title=f"Ops, {form} weights", header=header, rows=cells)


def measure(
    program: Program,
    rows: Sequence[int],
    device: Device,
    clock: Clock,
    *,
    tuned: MeasuredTable | None = None,
) -> Iterator[list[Row]]:
    """Yield all rows so far after each form. tuned: as store.read() gives it."""
    found: list[Row] = []
    for form in FORMS:
        bench = Bench.make(program, device, clock, form=form, rows=rows, tuned=tuned)
        bench.compile(rows)
        found += [row for n in rows for row in bench.measure(n)]
        yield found


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    add_cache_dir(made)
    made.add_argument("--layers", type=int, default=LAYERS, help="default: %(default)s")
    made.add_argument("--rows", type=int, nargs="+", default=list(ROWS), metavar="N")
    return made.parse_args(given)


def main() -> None:
    arguments = arguments_of()
    device = open_device()
    clock = GraphClock(device)
    limits = measure_limits(device, clock)
    program = program_of(LLAMA_8B, layers=arguments.layers)
    tuned = arguments.cache_dir and store.read(arguments.cache_dir, device.name)
    for rows in measure(program, arguments.rows, device, clock, tuned=tuned):
        tables = [limits_table(limits)]
        tables += [table(form, [r for r in rows if r.form == form], limits) for form in FORMS]
        publish("cuda_kernels", tables, Figures(limits=limits, rows=rows), arguments)


if __name__ == "__main__":
    run_main(main)
