"""Talk to a model in the terminal: a model of this machine, or a server's with --url.

Where input does not come from a terminal, each line is a question, and only the answers are printed.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.server.options import shared as options
from firelane.server.options.sampling import add_sampling, given_sampling

if TYPE_CHECKING:
    from firelane.cli.chat_command.source import AnswerSource
    from firelane.env import Environment

HISTORY = "chat_history"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    parser.add_argument(
        "--url", metavar="URL", help="a server of the OpenAI API; its key is taken from OPENAI_API_KEY"
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told first")
    add_sampling(parser, max_tokens=None)
    options.add_engine(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.chat_command.session import ChatSession
    from firelane.cli.chat_command.terminal import Terminal

    source = _source(arguments, environment)
    terminal = Terminal(environment.cache_dir / HISTORY)
    try:
        terminal.greet(source.name)
        settings = given_sampling(arguments)
        ChatSession(source, terminal, system=arguments.system, settings=settings).run()
    finally:
        terminal.close()
        source.close()
    return 0


def _source(arguments: argparse.Namespace, environment: Environment) -> AnswerSource:
    from firelane import env
    from firelane.cli.chat_command.source import LocalSource, ServerSource

    if arguments.url is not None:
        return ServerSource(arguments.url, arguments.model or "", env.api_key())
    return LocalSource.load(arguments.model, environment.cache_dir, options.engine_settings(arguments))
