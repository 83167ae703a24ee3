"""Remove a model: its files from the hub or an object store, and its packed weights.

What another program keeps is left to it. With --url, of a model of the node there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client
from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="the model, as `firelane list` or `cache list` calls it; with --url a name of the node",
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
    from firelane.sources import hub_cache
    from firelane.sources.locate import ModelSource

    _check_own(arguments.source)
    model = ModelSource(arguments.source, environment.cache_dir)
    if model.hub_id and hub_cache.repository(model.hub_id).is_dir():
        if not model.is_there():
            raise UsageError(f"{arguments.source}: is not here as a whole: `firelane list` tells what is")
        freed = hub_cache.size(model.hub_id, model.gguf_name) if arguments.dry_run else model.remove()
    else:
        freed = _remove_from_cache(arguments, environment)
    from firelane.server.start_lines import size_text

    print(f"{arguments.source}: {size_text(freed)} {'would be ' * arguments.dry_run}removed")
    return 0


def _check_own(name: str) -> None:
    """Raises UsageError for a model that another program keeps, which may count on it."""
    from firelane import env
    from firelane.sources.others import find

    kept = None if Path(name).expanduser().exists() else find(name, env.model_places())
    if kept is not None:
        raise UsageError(f"{name}: another program keeps it ({kept}): remove it there, as with `ollama rm`")


def _remove_from_cache(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.server.start_lines import size_text
    from firelane.sources.cache import NodeCache

    cache = NodeCache(environment.cache_dir)
    entries = cache.of(arguments.source) if arguments.dry_run else cache.remove(arguments.source)
    for entry in entries:
        print(f"{size_text(entry.nbytes):>12}  {entry.path}")
    return sum(entry.nbytes for entry in entries)
