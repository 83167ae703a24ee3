"""List the models of this machine, whichever program keeps them, and the names that every command takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment
    from firelane.sources.others import FoundModel

HEADER = ("NAME", "SIZE", "CHANGED", "KEPT BY")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--known", action="store_true", help="short names of models that can be fetched, and what they mean"
    )


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    if arguments.known:
        return _known()
    from firelane.sources.aliases import aliases

    found = models_here(environment)
    for line in table([HEADER, *map(_row, found)]):
        print(line)
    for alias, source in sorted(aliases().items()):
        print(f"{alias} is {source}")
    print(_advice(found))
    return 0


def models_here(environment: Environment) -> list[FoundModel]:
    """Find models of other programs, and what was fetched from object stores."""
    from firelane import env
    from firelane.sources.cache import NodeCache
    from firelane.sources.others import FoundModel, found_models

    fetched = [
        FoundModel(
            name=entry.source,
            source=entry.source,
            keeper="firelane",
            nbytes=entry.nbytes,
            changed_s=entry.used_s,
        )
        for entry in NodeCache(environment.cache_dir).entries()
        if entry.source and not entry.is_packed
    ]
    return [*found_models(env.model_places()), *fetched]


def table(rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of columns: the second one to the right, the others to the left."""
    rows = list(rows)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i == 1 else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _row(model: FoundModel) -> tuple[str, ...]:
    from firelane.server.start_lines import size_text

    changed = datetime.fromtimestamp(model.changed_s).strftime("%Y-%m-%d %H:%M")
    return model.name, size_text(model.nbytes), changed, model.keeper


def _advice(found: Sequence[FoundModel]) -> str:
    if found:
        return f"talk to one: firelane run {found[0].name}; others can be fetched: firelane list --known"
    return "none yet: firelane run smollm2:135m fetches a small one; others: firelane list --known"


def _known() -> int:
    from firelane.sources.short_names import SHORT_NAMES

    width = max(map(len, SHORT_NAMES))
    for name, hub_id in SHORT_NAMES.items():
        print(f"{name:<{width}}  {hub_id}")
    return 0
