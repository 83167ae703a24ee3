"""Talk to a model in the terminal: a model of this machine, or a server's with --url.

Where input does not come from a terminal, each line is a question, and only the answers are printed.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.errors import STEERING
from firelane.server.options import shared as options
from firelane.server.options.sampling import add_sampling, given_sampling

if TYPE_CHECKING:
    from firelane.cli.chat_command.source import AnswerSource
    from firelane.env import Environment

HISTORY = "chat_history"
HISTORY_LINES = 1000
HIDDEN = dict.fromkeys(STEERING)
"""Control characters of an answer, which would steer the terminal; not tab, new line and carriage return."""

DIM, PLAIN = "\x1b[2m", "\x1b[0m"


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

    source = _source(arguments, environment)
    terminal = _Terminal(environment.cache_dir / HISTORY)
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
    from firelane.llm import LLM
    from firelane.server.options.served_models import served_name
    from firelane.server.progress import ProgressDisplay

    display = ProgressDisplay(words={"pack": "packing weights, once"})
    settings = {"max_num_seqs": 1, **options.engine_settings(arguments)}
    settings["isolated"] = settings.get("sandbox", True)
    try:
        llm = LLM(arguments.model, cache_dir=environment.cache_dir, progress=display, **settings)
    finally:
        display.close()
    return LocalSource(llm, served_name(arguments.model))


class _Terminal:
    """Standard input and output. Lines that were typed are kept from one session to the next."""

    def __init__(self, history: Path) -> None:
        self._is_tty = sys.stdin.isatty()
        self._shows_tty = sys.stdout.isatty()
        self._history = history
        if self._is_tty:
            self._recall()

    def greet(self, name: str) -> None:
        if self._is_tty:
            self.say(f"{name}: /help tells the commands, Ctrl-D leaves")

    def read(self, prompt: str) -> str:
        if self._is_tty:
            return self._typed(prompt)
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    def show(self, text: str) -> None:
        sys.stdout.write(text.translate(HIDDEN) if self._shows_tty else text)
        sys.stdout.flush()

    def show_reasoning(self, text: str) -> None:
        """Dim. Where output goes elsewhere, the answer alone is wanted."""
        if self._shows_tty:
            sys.stdout.write(f"{DIM}{text.translate(HIDDEN)}{PLAIN}")
            sys.stdout.flush()

    def say(self, text: str) -> None:
        print(text.translate(HIDDEN), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Keep what was typed. Where that cannot be, it is lost."""
        if not self._is_tty:
            return
        with contextlib.suppress(ImportError, OSError):
            import readline

            self._history.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._history.touch(mode=0o600)
            readline.set_history_length(HISTORY_LINES)
            readline.write_history_file(self._history)

    def _recall(self) -> None:
        with contextlib.suppress(ImportError, OSError):
            import readline  # also gives `input` its line editor

            readline.read_history_file(self._history)

    def _typed(self, prompt: str) -> str:
        try:
            return input(prompt)
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            raise
