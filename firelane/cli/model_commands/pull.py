"""Fetch a model, weights and all, so that later starts need no network.

What is there is compared with what came, and fetched again where it differs; a run that was interrupted goes
on when the command is given again. With --url the node there fetches its model of this name.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="hub id, or the address of an object store; with --url a name of the node",
    )
    node_client.add_optional_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.server.progress import ProgressDisplay

    display = ProgressDisplay()
    began_s = time.perf_counter()
    where = arguments.source
    try:
        if arguments.url is not None:
            node_client.pull(arguments, display)
        else:
            from firelane.sources.resolve import resolve

            where = resolve(where, progress=display, cache_dir=environment.cache_dir, whole=True)
    finally:
        display.close()
    print(f"{where}: there in {time.perf_counter() - began_s:.1f} s")
    return 0
