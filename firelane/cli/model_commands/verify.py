"""Check a packed model: every byte is decoded and compared with what was packed; nothing is written.

Exit code 1 and one line about the first thing that is damaged.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

from firelane.server.options import shared as options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("packed", metavar="PACKED", help="packed directory, or hub id of one")
    options.add_engine(parser, "threads")


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del environment
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.resolve import resolve
    from firelane.weights.lossless.verify import verify

    display = ProgressDisplay()
    packed = resolve(arguments.packed, progress=display, whole=True)
    began_s = time.perf_counter()
    nbytes = verify(packed, threads=options.threads(arguments), progress=display)
    display.close()
    print(f"{nbytes / 1e9:.3f} GB are what was packed; checked in {time.perf_counter() - began_s:.1f} s")
    return 0
