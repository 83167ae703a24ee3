"""Show what this machine has and what it can do, or how a model writes.

Instruction sets, cores, memory, compiler, caches, and the measured limits. Exit code 1 when something is
missing without which no model can be served, or --verify found something damaged. With MODEL: the format of
its chats, and how it was found.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="explain how this model's chats are written"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument(
        "--save",
        action="store_true",
        help="keep what was measured in the cache directory, for `firelane plan --device cpu`",
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="read all of the cache instead, and name the files that are damaged",
    )


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.model is not None:
        _refuse_options_of_the_machine(arguments)
        return _explain(arguments.model, environment)
    if arguments.verify:
        return _verify(environment, as_json=arguments.json)
    from firelane.doctor.report import examine, format_report

    report = examine(environment)
    if arguments.json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(report), indent=2).decode())
    else:
        print(format_report(report))
    if arguments.save:
        from firelane.doctor.report import save_machine

        print(f"saved as {save_machine(report, environment.cache_dir)}", file=sys.stderr)
    return 1 if report.problems else 0


def _refuse_options_of_the_machine(arguments: argparse.Namespace) -> None:
    """Raises UsageError for options that a model's explanation has no use for."""
    for name in ("json", "save", "verify"):
        if getattr(arguments, name):
            raise UsageError(f"--{name} is for the report on this machine: leave it out, or the model")


def _explain(model: str, environment: Environment) -> int:
    from firelane.doctor.chat import explain_chat
    from firelane.sources.resolve import resolve

    directory = resolve(model, cache_dir=environment.cache_dir)
    for line in explain_chat(directory, environment.cache_dir):
        print(line)
    return 0


def _verify(environment: Environment, *, as_json: bool) -> int:
    from firelane.doctor.verify import verify_cache

    found = verify_cache(environment.cache_dir)
    if as_json:
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(found), indent=2).decode())
    else:
        for path in found.damaged:
            print(f"damaged, or of another version: {path}; remove it, the next start makes it anew")
        size = f"{found.files} files, {found.nbytes / 1e9:.2f} GB"
        print(f"{size} in {environment.cache_dir} were read in {found.seconds:.1f} s")
    return 1 if found.damaged else 0
