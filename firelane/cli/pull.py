"""Fetch a model, weights and all, so that later starts need no network.

What is there is compared with what came, and fetched again where it differs; a run that was interrupted goes
on when the command is given again.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="SOURCE", help="hub id, or the address of an object store")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.progress import ProgressDisplay
    from firelane.sources.resolve import resolve

    display = ProgressDisplay()
    began_s = time.perf_counter()
    directory = resolve(arguments.source, progress=display, cache_dir=environment.cache_dir, whole=True)
    display.close()
    print(f"{directory}: there in {time.perf_counter() - began_s:.1f} s")
    return 0
