"""Give a model a name of your own, which every command then takes; without NAME list such names."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="the new name")
    parser.add_argument("source", nargs="?", metavar="MODEL", help="what it means: as every command takes it")
    parser.add_argument("--remove", action="store_true", help="forget NAME")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from pathlib import Path

    from firelane.errors import UsageError
    from firelane.sources.aliases import aliases, remove_alias, set_alias

    del environment
    name, source = arguments.name, arguments.source
    if name is None:
        for alias, meant in sorted(aliases().items()):
            print(f"{alias} is {meant}")
    elif arguments.remove:
        remove_alias(name)
        print(f"{name} is forgotten")
    elif source is None:
        raise UsageError("MODEL is missing: say what the name means, or --remove to forget it")
    else:
        path = Path(source).expanduser()
        meant = str(path.resolve()) if path.exists() else source
        set_alias(name, meant)
        print(f"{name} is {meant}")
    return 0
