"""Undo `firelane pack`: the original directory, byte for byte.

Every file is checked. A run that was interrupted goes on when the command is given again.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packed", metavar="PACKED", help="packed directory, or hub id of one")
    parser.add_argument("out", type=Path, metavar="OUT", help="new directory")
    options.add_engine(parser, "threads")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve
    from firelane.weights.lossless.unpack import unpack

    display = ProgressDisplay()
    packed = resolve(arguments.packed, progress=display, whole=True)
    began_s = time.perf_counter()
    nbytes = unpack(packed, arguments.out, threads=options.threads(arguments), progress=display)
    display.close()
    print(f"{nbytes / 1e9:.3f} GB written and checked in {time.perf_counter() - began_s:.1f} s")
    return 0
