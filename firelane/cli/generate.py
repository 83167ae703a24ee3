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
    sampling.add_argument(
        "--max-tokens", type=options.positive_int, default=256, metavar="N", help="default: 256"
    )
    sampling.add_argument("--temperature", type=float, metavar="T", help="0 is greedy (default: as advised)")
    sampling.add_argument("--top-p", type=float, metavar="P", help="share of the mass that may be drawn")
    sampling.add_argument("--top-k", type=int, metavar="K", help="how many tokens may be drawn; 0 is all")
    sampling.add_argument("--seed", type=int, metavar="N", help="same seed, same text (default: a new one)")
    sampling.add_argument("--stop", action="append", metavar="TEXT", help="end before it; may be repeated")
    options.add_engine(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from dataclasses import replace

    from firelane.cli.progress import ProgressDisplay
    from firelane.llm import LLM

    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    display = ProgressDisplay()
    settings = options.engine_settings(arguments)
    with LLM(arguments.model, cache_dir=environment.cache_dir, progress=display, **settings) as llm:
        display.close()
        names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
        given = {n: getattr(arguments, n) for n in names if getattr(arguments, n) is not None}
        params = replace(llm.default_sampling(), **given)
        if arguments.chat:
            pieces = llm.stream_chat([{"role": "user", "content": prompt}], params)
        else:
            pieces = llm.stream(prompt, params)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
    return 0
