"""Pack a model without loss: about a third smaller, bit for bit the same, served like the original.

OUT is a directory in Hugging Face layout, in the format of docs/lossless-format.md. A run that was
interrupted goes on when the command is given again.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.errors import UsageError
from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.env import Environment
    from firelane.weights.lossless.pack import PackResult
    from firelane.weights.lossless.report import TensorReport


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="directory in Hugging Face layout, or hub id")
    parser.add_argument(
        "out", nargs="?", type=Path, metavar="OUT", help="new directory (none: with --report, write nothing)"
    )
    options.add_engine(parser, "threads")
    parser.add_argument(
        "--report", action="store_true", help="print each tensor's entropy, coverage and bits"
    )


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve
    from firelane.weights.lossless import pack, report

    if arguments.out is None and not arguments.report:
        raise UsageError("OUT is missing: give a new directory, or --report to write nothing")
    display = ProgressDisplay()
    threads = options.threads(arguments)
    model_dir = resolve(arguments.model, progress=display, whole=True)
    if arguments.out is None:
        packed = pack.pack_nowhere(model_dir, threads=threads, progress=display)
    else:
        packed = pack.pack(model_dir, arguments.out, threads=threads, progress=display)
    reports = report.report(model_dir, packed.controls, threads=threads) if arguments.report else []
    display.close()
    if reports:
        print(format_report(reports))
    print(_summary(packed))
    return 0


def format_report(reports: list[TensorReport]) -> str:
    """A table with a line for each tensor, and the totals."""
    from firelane.bench.table import format_table
    from firelane.weights.lossless.report import mean

    header = ("tensor", "dtype", "weights", "entropy", "window 14", "escapes", "window 7", "escapes")
    header += ("palette 16", "at rest", "12-bit", "11-bit")
    rows = [_row(r) for r in reports]
    total = [
        mean([getattr(r, n) for r in reports], reports) for n in ("bits_at_rest", "bits_wide", "bits_narrow")
    ]
    rows.append(["all", "", str(sum(r.weights for r in reports)), *[""] * 6, *[f"{t:.2f}" for t in total]])
    note = (
        "entropy: bits of an exponent. window: share of weights in the best window of so many "
        "exponents of each\n"
        "32 rows; escapes: the others. palette: share of the 16 most frequent exponents. at rest, "
        "12-bit, 11-bit:\n"
        "bits of a weight on disk, and in memory in the form with the wide and with the narrow window."
    )
    return f"{format_table(header, rows)}\n\n{note}\n"


def _row(r: TensorReport) -> list[str]:
    bits = [f"{b:.2f}" for b in (r.bits_at_rest, r.bits_wide, r.bits_narrow)]
    if r.entropy is None or r.wide is None or r.narrow is None or r.palette is None:
        return [r.name, r.dtype, str(r.weights), *["-"] * 6, *bits]
    shares = [f"{s:.4%}" for s in (r.wide, 1 - r.wide, r.narrow, 1 - r.narrow, r.palette)]
    return [r.name, r.dtype, str(r.weights), f"{r.entropy:.3f}", *shares, *bits]


def _summary(packed: PackResult) -> str:
    before, after = packed.original_bytes, packed.packed_bytes
    lines = [f"{before / 1e9:.3f} GB -> {after / 1e9:.3f} GB: {after / before:.1%} of the original"]
    if packed.kept:
        lines.append(f"finished before, checked and kept: {', '.join(packed.kept)}")
    if packed.skipped:
        lines.append(f"not carried along: {', '.join(packed.skipped)}")
    return "\n".join(lines)
