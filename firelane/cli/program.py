"""Print a model as Firelane runs it: its ops with shapes, FLOPs and bytes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli import options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    options.add_kv_cache_dtype(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.cli.progress import ProgressDisplay
    from firelane.models.config import read_config
    from firelane.models.registry import load_program
    from firelane.program.cache_rewrite import with_cache_dtype
    from firelane.program.printer import format_program
    from firelane.sources.resolve import resolve

    directory = resolve(arguments.model, progress=ProgressDisplay())
    program = with_cache_dtype(load_program(read_config(directory)), arguments.kv_cache_dtype)
    print(format_program(program))
    return 0
