"""Show what this machine has and what it can do.

Instruction sets, cores, memory, compiler, caches, and the measured limits. Exit code 1 when something is
missing without which no model can be served.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.doctor.report import examine, format_report

    report = examine(environment)
    if arguments.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(format_report(report))
    return 1 if report.problems else 0
