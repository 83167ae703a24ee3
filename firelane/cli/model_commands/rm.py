"""Remove what the cache holds of a model: its files from an object store, its packed weights.

With --url, of a model of the node there.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="the model, as `firelane cache list` calls it; with --url a name of the node",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="tell what would be removed, and remove nothing"
    )
    node_client.add_optional_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.url is not None:
        if arguments.dry_run:
            raise UsageError("--dry-run tells of this machine's cache: leave it out, or --url")
        print(f"{arguments.source}: {node_client.remove(arguments)}")
        return 0
    from firelane.sources.cache import NodeCache

    cache = NodeCache(environment.cache_dir)
    entries = cache.of(arguments.source) if arguments.dry_run else cache.remove(arguments.source)
    for entry in entries:
        print(f"{entry.nbytes / 1e6:>9,.0f} MB  {entry.path}")
    freed = sum(entry.nbytes for entry in entries)
    print(f"{arguments.source}: {freed / 1e6:,.0f} MB {'would be ' * arguments.dry_run}removed")
    return 0
