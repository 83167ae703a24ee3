"""Continue a prompt on this machine, without a server: tokens are printed as they come."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from firelane.server.options import shared as options
from firelane.server.options.sampling import add_sampling, given_sampling

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument("--prompt", required=True, metavar="TEXT", help="- reads standard input")
    parser.add_argument("--chat", action="store_true", help="the prompt is a user's message to a chat model")
    add_sampling(parser, max_tokens=256)
    options.add_engine(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from dataclasses import replace

    from firelane.llm import LLM
    from firelane.server.progress import ProgressDisplay

    prompt = sys.stdin.read() if arguments.prompt == "-" else arguments.prompt
    display = ProgressDisplay()
    settings = options.engine_settings(arguments)
    settings["isolated"] = settings.get("sandbox", True)
    with LLM(arguments.model, cache_dir=environment.cache_dir, progress=display, **settings) as llm:
        display.close()
        params = replace(llm.default_sampling("llama.cpp"), **given_sampling(arguments))
        params = replace(params, lora=options.first_adapter(settings))
        if arguments.chat:
            pieces = llm.stream_chat([{"role": "user", "content": prompt}], params)
        else:
            pieces = llm.stream(prompt, params)
        for piece in pieces:
            print(piece, end="", flush=True)
        print()
    return 0
