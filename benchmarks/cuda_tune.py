"""Measures how each product of a model of Llama-8B's shape is best spread over this GPU, and keeps the table
where the backend looks for it.

cuda_tune.py --cache-dir DIR [--model DIR] [--minutes N] [--rows N ...] [--out DIR]

For every bucket of rows and both forms of weights, most important first, until the time is over; what was not
reached stays with the rule until the next run, which leaves out what the table has. Kernels are compiled
ahead, in threads. DIR is what FIRELANE_CACHE_DIR names (or its default) when the server is to use the table.
Results do not depend on it.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from cuda_clock import open_device
from cuda_drive import limits_for
from cuda_llama import LLAMA_8B, program_of
from cuda_report import Table, parser, publish, run_main
from cuda_tuning.candidates import neighbours
from cuda_tuning.grouped_problem import problem_of
from cuda_tuning.stopwatch import CudaStopwatch
from cuda_tuning.tuner import Measured, table_of, tune

from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape, by_rule
from firelane.backends.cuda.lowering.buckets import make_buckets
from firelane.backends.cuda.lowering.compilation import compile_all
from firelane.backends.cuda.lowering.product_plan import ExpertOp, ProductPlan, grouped_shape
from firelane.backends.cuda.tuning import store
from firelane.contract import StepLimits
from firelane.errors import CompilerError
from firelane.program.program import Program

LIMITS = limits_for(sequences=256, longest=8192, step_tokens=2048, kept_tokens=512)
FIRST_ROWS = (1, 256, 64, 2048, 16, 128)  # then all others, by size
MINUTES = 8.0


@dataclass(frozen=True, kw_only=True)
class Figures:
    file: str
    measured: list[Measured]
    left_out: list[ProductShape]


def shapes_of(program: Program, limits: StepLimits, *, is_coded: bool) -> Iterator[ProductShape]:
    """Every product of every bucket, but for those by head."""
    experts = [op for op in program.ops if isinstance(op, ExpertOp)]
    for bucket in make_buckets(limits):
        for op in experts:
            yield grouped_shape(op, ProductPlan.rows(op.x, bucket), is_coded=is_coded)
        for product in program.products:
            if product.layout.by_expert:
                continue
            yield ProductShape(
                rows=product.weight.rows,
                k=product.weight.k,
                gated=product.layout.is_gated,
                max_rows=ProductPlan.rows(product.x, bucket),
                is_coded=is_coded,
            )


def in_order(shapes: Sequence[ProductShape]) -> list[ProductShape]:
    """Each once; those of the rows that matter most first."""

    def rank(shape: ProductShape) -> tuple[int, int]:
        rows = shape.max_rows
        return (FIRST_ROWS.index(rows) if rows in FIRST_ROWS else len(FIRST_ROWS), rows)

    return sorted(dict.fromkeys(shapes), key=rank)


def candidates(shape: ProductShape) -> list[LinearConfig]:
    """Return the configs that the tuner tries first."""
    return [by_rule(shape), *neighbours(by_rule(shape), shape)]


def compile_ahead(shapes: Sequence[ProductShape]) -> None:
    """Their first candidates, from operands on no device. One that the compiler refuses is left to the
    stopwatch, which says so."""
    problems = [problem_of(replace(s), torch.device("meta")) for s in shapes]
    runs = [p.runs(config)[0] for p in problems for config in candidates(p.shape)]

    def compile_one(works: Sequence[Work]) -> None:
        with suppress(CompilerError):
            compile_all(works, threads=1)

    with ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="ahead") as pool:
        list(pool.map(compile_one, runs))


def measure(
    shapes: Sequence[ProductShape], *, stopwatch: CudaStopwatch, device: torch.device, minutes: float
) -> Iterator[dict[ProductShape, Measured]]:
    """Yield all configs found so far after each shape. Meanwhile the next shape's kernels compile."""
    ends_s = time.monotonic() + 60 * minutes
    found: dict[ProductShape, Measured] = {}
    with ThreadPoolExecutor(1, thread_name_prefix="ahead") as ahead:
        coming = ahead.submit(compile_ahead, shapes[:1])
        for index, shape in enumerate(shapes):
            if time.monotonic() >= ends_s:
                break
            coming.result()
            coming = ahead.submit(compile_ahead, shapes[index + 1 : index + 2])
            found |= tune([shape], lambda s: problem_of(s, device).runs, stopwatch)
            yield found


def table(figures: Figures) -> Table:
    rows = [
        [
            f"{m.shape.rows} x {m.shape.k}{', gated' if m.shape.gated else ''}{_experts(m.shape)}",
            "window" if m.shape.is_coded else "plain",
            str(m.shape.max_rows),
            f"{m.times_ms[by_rule(m.shape)] * 1e3:.1f}",
            f"{m.best_ms * 1e3:.1f}",
            describe(m.config),
        ]
        for m in figures.measured
    ]
    return Table(
        title="Products: by rule, and the fastest that was found",
        header=["matrix", "form", "rows", "rule us", "best us", "config"],
        rows=rows,
        notes=[f"{len(figures.left_out)} shapes were not reached. Table: {figures.file}"],
    )


def _experts(shape: ProductShape) -> str:
    return f", {shape.picks} of {shape.experts} experts" if shape.experts else ""


def describe(config: LinearConfig) -> str:
    """The tile, and what else differs from the class's defaults."""
    default = vars(LinearConfig(row_tile=config.row_tile))
    changed = [f"{name}={value}" for name, value in vars(config).items() if value != default[name]]
    return " ".join([f"row_tile={config.row_tile}", *changed])


def figures_of(file: Path, shapes: Sequence[ProductShape], found: dict[ProductShape, Measured]) -> Figures:
    return Figures(
        file=str(file), measured=list(found.values()), left_out=[s for s in shapes if s not in found]
    )


def record_of(figures: Figures) -> dict[str, Any]:
    """Return the figures for JSON, which has no dataclasses as keys: a list with the times of each shape by
    config."""
    return {
        "file": figures.file,
        "measured": [
            {"shape": vars(m.shape), "config": vars(m.config), "best_ms": m.best_ms} for m in figures.measured
        ],
        "left_out": [vars(s) for s in figures.left_out],
    }


def arguments_of(given: Sequence[str] | None = None) -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--cache-dir", type=Path, required=True, metavar="DIR")
    made.add_argument("--model", type=Path, metavar="DIR", help="whose config.json says the shapes")
    made.add_argument("--minutes", type=float, default=MINUTES, help="default: %(default)s")
    made.add_argument("--rows", type=int, nargs="+", metavar="N", help="only buckets of so many rows")
    return made.parse_args(given)


def main() -> None:
    arguments = arguments_of()
    config = json.loads((arguments.model / "config.json").read_text()) if arguments.model else LLAMA_8B
    program = program_of(config)
    device = open_device()
    shapes = in_order([s for w in (False, True) for s in shapes_of(program, LIMITS, is_coded=w)])
    shapes = [s for s in shapes if not arguments.rows or s.max_rows in arguments.rows]
    tune_missing(shapes, device.name, CudaStopwatch(), arguments)


def tune_missing(
    shapes: Sequence[ProductShape], device_name: str, stopwatch: CudaStopwatch, arguments: argparse.Namespace
) -> None:
    """Measure what the table does not have. What was found is published whatever comes in between."""
    cache_dir = arguments.cache_dir
    before = store.read(cache_dir, device_name) or {}
    missing = [s for s in shapes if s not in before]
    found: dict[ProductShape, Measured] = {}
    try:
        for found in measure(
            missing, stopwatch=stopwatch, device=torch.device("cuda"), minutes=arguments.minutes
        ):
            store.write(cache_dir, device_name, {**before, **table_of(found)})
    finally:
        figures = figures_of(store.path_of(cache_dir, device_name), missing, found)
        publish("cuda_tune", [table(figures)], record_of(figures), arguments)


if __name__ == "__main__":
    run_main(main)
