"""Continue a prompt on this machine, without a server: tokens are printed as they come."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from firelane.cli import options

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="- reads standard input")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message to a chat model")
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=options.positive_int, default=256, metavar="N")
    sampling.add_argument("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy")
    sampling.add_argument("--top-p", type=float, default=1.0, metavar="P")
    sampling.add_argument("--top-k", type=int, default=0, metavar="K", help="0 is off")
    sampling.add_argument("--seed", type=int, metavar="N", help="same seed, same text (default: a new one)")
    sampling.add_argument("--stop", action="append", default=[], metavar="TEXT", help="may be repeated")
    options.add_engine(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    del arguments, environment, sys
    return 1
