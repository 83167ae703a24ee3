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
    parser.add_argument(
        "--tensor-parallel-size",
        type=options.positive_int,
        default=1,
        metavar="N",
        help="ranks of a stage: print what each of them runs (default: %(default)s)",
    )
    parser.add_argument(
        "--expert-parallel-size",
        type=options.positive_int,
        default=1,
        metavar="N",
        help="ranks of a stage that share experts, MLPs and attention (default: %(default)s)",
    )
    parser.add_argument(
        "--pipeline-parallel-size",
        type=options.positive_int,
        default=1,
        metavar="N",
        help="stages (default: %(default)s)",
    )


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.cli.progress import ProgressDisplay
    from firelane.models.config import read_config
    from firelane.models.registry import load_program, warn_of_unknown_keys
    from firelane.parallel.describe import describe_ranks
    from firelane.parallel.ranks import RankLayout
    from firelane.program.cache_rewrite import with_cache_dtype
    from firelane.program.printer import format_program
    from firelane.sources.resolve import resolve

    directory = resolve(arguments.model, progress=ProgressDisplay())
    program = with_cache_dtype(load_program(read_config(directory)), arguments.kv_cache_dtype)
    warn_of_unknown_keys(program, directory.name)
    layout = RankLayout.of(
        program,
        tp=arguments.tensor_parallel_size,
        pp=arguments.pipeline_parallel_size,
        ep=arguments.expert_parallel_size,
    )
    print(format_program(program) if layout.ranks == 1 else describe_ranks(program, layout))
    return 0
