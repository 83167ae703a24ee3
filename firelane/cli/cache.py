"""Show what the cache holds: models of object stores, and packed weights."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment
    from firelane.sources.entries import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    listed = kinds.add_parser("list", help="all entries, those used longest ago first")
    listed.set_defaults(run_cache=_list)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    return arguments.run_cache(environment)


def _list(environment: Environment) -> int:
    from firelane.sources.cache import NodeCache

    entries = NodeCache(environment.cache_dir).entries()
    print(f"{'SIZE':>12}  {'USED':16}  {'WHAT':7}  SOURCE")
    for entry in entries:
        print(_line(entry))
    print(f"{sum(entry.nbytes for entry in entries) / 1e6:>9,.0f} MB  in {environment.cache_dir}")
    return 0


def _line(entry: Entry) -> str:
    used = datetime.fromtimestamp(entry.used_s).strftime("%Y-%m-%d %H:%M")
    kind = "weights" if entry.is_packed else "model"
    return f"{entry.nbytes / 1e6:>9,.0f} MB  {used:16}  {kind:7}  {entry.source or entry.path}"
