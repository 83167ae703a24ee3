"""Talk to a model by its name: one that the server here has, else this machine fetches it and runs it.

With TEXT it answers that, and ends.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli.node_commands.node_client import DEFAULT_URL
from firelane.server.options import shared as options
from firelane.server.options.sampling import add_sampling, given_sampling

if TYPE_CHECKING:
    from firelane.cli.chat_command.source import AnswerSource
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "model", metavar="MODEL", help="name that `firelane list` tells, hub id, directory, or GGUF file"
    )
    parser.add_argument(
        "text", nargs="*", metavar="TEXT", help="a question, before the options; without one, a conversation"
    )
    parser.add_argument(
        "--url",
        default=DEFAULT_URL,
        help="a server that is asked first; its key is taken from OPENAI_API_KEY (default: %(default)s)",
    )
    parser.add_argument("--system", default="", metavar="TEXT", help="what the model is told first")
    add_sampling(parser, max_tokens=None)
    options.add_engine(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.chat import HISTORY
    from firelane.cli.chat_command.session import ChatSession
    from firelane.cli.chat_command.terminal import Terminal

    source, settings = _source(arguments, environment), given_sampling(arguments)
    terminal = Terminal(environment.cache_dir / HISTORY)
    try:
        session = ChatSession(source, terminal, system=arguments.system, settings=settings)
        if arguments.text:
            return 0 if session.ask_once(" ".join(arguments.text)) else 1
        terminal.greet(source.name)
        session.run()
    finally:
        terminal.close()
        source.close()
    return 0


def _source(arguments: argparse.Namespace, environment: Environment) -> AnswerSource:
    """The server, where it has the model by this name or by what the name means; else the model itself."""
    from firelane import env
    from firelane.cli.chat_command.source import LocalSource, ServerSource, served_by
    from firelane.sources.names import source_of

    key = env.api_key()
    served = served_by(arguments.url, key, (arguments.model, source_of(arguments.model)))
    if served:
        return ServerSource(arguments.url, served, key)
    return LocalSource.load(arguments.model, environment.cache_dir, options.engine_settings(arguments))
