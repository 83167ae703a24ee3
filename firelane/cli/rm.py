"""Remove what the cache holds of a model: its files from an object store, its packed weights."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="the model, as `firelane cache list` calls it")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.sources.cache import NodeCache

    freed = NodeCache(environment.cache_dir).remove(arguments.source)
    print(f"{arguments.source}: {freed / 1e6:,.0f} MB removed")
    return 0
