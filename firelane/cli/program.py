"""Print a model as Firelane runs it: its ops with shapes, FLOPs and bytes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    sizes = (f"{kind}_parallel_size" for kind in ("tensor", "expert", "pipeline"))
    options.add_engine(parser, "kv_cache_dtype", *sizes)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.models.config.reader import read_config
    from firelane.models.registry import load_program, warn_of_unknown_keys
    from firelane.parallel.describe import describe_ranks
    from firelane.parallel.ranks import RankLayout
    from firelane.program.cache_rewrite import with_cache_dtype
    from firelane.program.printer import format_program
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve

    directory = resolve(arguments.model, progress=ProgressDisplay())
    given = options.engine_settings(arguments)
    program = with_cache_dtype(load_program(read_config(directory)), given.get("kv_cache_dtype", "auto"))
    warn_of_unknown_keys(program, directory.name)
    layout = RankLayout.of(
        program,
        tp=given.get("tensor_parallel_size", 1),
        pp=given.get("pipeline_parallel_size", 1),
        ep=given.get("expert_parallel_size", 1),
    )
    print(format_program(program) if layout.ranks == 1 else describe_ranks(program, layout))
    return 0
