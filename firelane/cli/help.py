"""Tell the options of a command, as --help does; without COMMAND all commands."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="a command, and one below it")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli import main

    del environment
    try:
        return main([*arguments.words, "--help"])
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
