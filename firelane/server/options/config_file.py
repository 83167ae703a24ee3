"""The file of --config: options of a command that its command line does not give."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from firelane.options import OptionSet, Values


def add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="further options, also those of files alone, below [server] and [engine] of a TOML file; what "
        "the command line gives counts before them",
    )


def given_values(arguments: argparse.Namespace, options: OptionSet) -> Values:
    """Values of the options that the command line and its file give. Raises UsageError, with line and key."""
    if arguments.config is None:
        return vars(arguments)
    from dataclasses import replace

    from firelane.node.toml_file import TomlFile
    from firelane.options import read_table

    file, found = TomlFile(arguments.config), dict[str, Any]()
    tables = {group.table: () for group, _ in options.by_group()}
    file.check_keys((), tables)
    for name in tables:
        own = replace(options, groups=tuple(one for one, _ in options.by_group() if one.table == name))
        file.check_keys((name,), own.by_key)
        found |= read_table(
            own,
            file.table(name),
            arguments.config.parent,
            lambda key, told, name=name: file.error((name, key), told),
        )
    return {**found, **vars(arguments)}
