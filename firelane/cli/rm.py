"""Remove what the cache holds of a model: its files from an object store, its packed weights; with --url, of
a model of the node there."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli import node_client

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="the model, as `firelane cache list` calls it; with --url a name of the node",
    )
    node_client.add_optional_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.url is not None:
        print(f"{arguments.source}: {node_client.remove(arguments)}")
        return 0
    from firelane.sources.cache import NodeCache

    freed = NodeCache(environment.cache_dir).remove(arguments.source)
    print(f"{arguments.source}: {freed / 1e6:,.0f} MB removed")
    return 0
