"""Compile every case of compile_cases/ for sm_90 and show what the kernels take. No GPU is needed.

    python -m tests.backends.cuda.compile_kernels [--json] [--each N] [FILE_STEM ...]

Exit code 1 if a kernel does not compile, spills, takes too much shared memory or lacks what its case needs.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

os.environ.pop("TRITON_INTERPRET", None)  # before triton is imported: an interpreting process cannot compile

from firelane.backends.cuda.device.launch import Launch
from tests.backends.cuda.compile_driver import (
    ASYNC_COPY,
    WGMMA,
    WIDE_LOADS,
    Case,
    Resources,
    compile_launch,
    use_no_device,
)

CASES = Path(__file__).parent / "compile_cases"
WORKERS = 2


@dataclass(frozen=True, kw_only=True)
class Report:
    """resources: None where there is no kernel. problems: nothing if all is well."""

    file: str
    name: str
    kernel: str
    resources: Resources | None = None
    problems: list[str] = field(default_factory=list[str])
    seconds: float = 0.0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="compile_kernels")
    parser.add_argument("--json", action="store_true", help="one JSON list in place of the table")
    parser.add_argument(
        "--each", type=int, metavar="N", help="no more than N cases of each kind of kernel of a file"
    )
    parser.add_argument("files", nargs="*", help="stems of files in compile_cases/ (default: all)")
    options = parser.parse_args(arguments)
    use_no_device()
    stems = options.files or sorted(path.stem for path in CASES.glob("*.py"))
    reports = compile_all(stems, each=options.each)
    print(json.dumps([asdict(r) for r in reports]) if options.json else table(reports))
    return 1 if any(report.problems for report in reports) else 0


def compile_all(stems: list[str], *, each: int | None = None) -> list[Report]:
    work: list[tuple[str, Case | Exception]] = []
    for stem in stems:
        work += [(stem, case) for case in _first(each, _cases(stem))]
    with ThreadPoolExecutor(WORKERS) as pool:  # as the loader does: from several threads
        return list(pool.map(_report, *zip(*work, strict=True))) if work else []


def _first(each: int | None, cases: Iterator[Case | Exception]) -> Iterator[Case | Exception]:
    """At most `each` cases of a kernel with so many warps, in either form of weights."""
    seen: Counter[tuple[object, ...]] = Counter()
    for case in cases:
        kind = _kind(case.launch) if isinstance(case, Case) else ()
        seen[kind] += 1
        if each is None or seen[kind] <= each:
            yield case


def _kind(launch: Launch) -> tuple[object, ...]:
    matrix = launch.arguments.get("matrix")
    forms = [getattr(matrix, name, None) for name in ("codes", "scales", "minima")]
    forms.append(launch.arguments.get("bounds"))
    return launch.name, launch.warps, *(form is not None for form in forms)


def _cases(stem: str) -> Iterator[Case | Exception]:
    """A file that fails is a report of its own; the others are compiled all the same."""
    try:
        yield from importlib.import_module(f"tests.backends.cuda.compile_cases.{stem}").cases()
    except Exception as error:
        yield error


def _report(stem: str, case: Case | Exception) -> Report:
    if isinstance(case, Exception):
        return Report(file=stem, name="(cases)", kernel="", problems=[_describe(case)])
    began = time.perf_counter()
    name, kernel = case.name, case.launch.name
    try:
        resources = compile_launch(case.launch)
    except Exception as error:
        return Report(file=stem, name=name, kernel=kernel, problems=[_describe(error)])
    return Report(
        file=stem,
        name=name,
        kernel=kernel,
        resources=resources,
        problems=resources.problems(case),
        seconds=round(time.perf_counter() - began, 2),
    )


def _describe(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def table(reports: list[Report]) -> str:
    width = max(len(r.name) for r in reports)
    numbers = f"{'regs':>4} {'stack':>5} {'local':>5} {'shared':>6} {'warps':>5} {'per SM':>6}"
    head = f"{'file':9} {'case':{width}} {numbers}  {WGMMA:5} {ASYNC_COPY:8} {WIDE_LOADS:10} problems"
    rows = [f"{r.file:9} {r.name:{width}} {_numbers(r.resources)} {'; '.join(r.problems)}" for r in reports]
    bad = sum(bool(r.problems) for r in reports)
    last = f"{len(reports)} kernels, {bad} with problems, {sum(r.seconds for r in reports):.0f} s"
    return "\n".join([head, *(row.rstrip() for row in rows), last])


def _numbers(r: Resources | None) -> str:
    if r is None:
        return " " * 63
    yes = [("yes" if name in r.found else "-") for name in (WGMMA, ASYNC_COPY, WIDE_LOADS)]
    counts = f"{r.registers:4} {r.stack:5} {r.local:5} {r.shared:6} {r.warps:5} {r.programs:6}"
    return f"{counts}  {yes[0]:5} {yes[1]:8} {yes[2]:10}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
