"""Print the version of Firelane.

Nothing else is printed, so that scripts can read it.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane import __version__

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del arguments, environment
    print(__version__)
    return 0
