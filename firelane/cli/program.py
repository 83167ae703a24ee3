"""Print a model as Firelane runs it: its ops with shapes, FLOPs and bytes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli import options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.cli.progress import ProgressDisplay
    from firelane.models.config import read_config
    from firelane.models.registry import load_program
    from firelane.program.printer import format_program
    from firelane.sources.resolve import resolve

    directory = resolve(arguments.model, progress=ProgressDisplay())
    print(format_program(load_program(read_config(directory))))
    return 0
