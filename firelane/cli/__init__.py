"""The `firelane` command: one file per subcommand, each with `add_arguments` and `run`.

A command builds the config of each part that it composes and prints the resolved values. What is heavy is
imported inside `run`: `firelane --help` loads little more than argparse.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from firelane import __version__
from firelane.cli.command_parser import CommandParser
from firelane.errors import FirelaneError

if TYPE_CHECKING:
    from firelane.node.engine_process import EngineAhead

COMMANDS = {
    "run": "",
    "list": "model_commands.",
    "serve": "",
    "engine": "",
    "node": "",
    "ps": "node_commands.",
    "load": "node_commands.",
    "sleep": "node_commands.",
    "wake": "node_commands.",
    "unload": "node_commands.",
    "role": "node_commands.",
    "chat": "",
    "generate": "",
    "show": "model_commands.",
    "keys": "",
    "pack": "model_commands.",
    "unpack": "model_commands.",
    "verify": "model_commands.",
    "quantize": "model_commands.",
    "pull": "model_commands.",
    "rm": "model_commands.",
    "alias": "model_commands.",
    "cache": "model_commands.",
    "bench": "",
    "doctor": "",
    "plan": "",
    "program": "",
    "version": "",
    "help": "",
}
"""Commands, in the order in which the help tells them, and the package of each one's file here."""
COMMAND_NAMES = tuple(COMMANDS)


def _parse(words: Sequence[str]) -> argparse.Namespace:
    """Options that nobody knows are told by the parser of their command."""
    only = next((word for word in words if not word.startswith("-")), "")
    parser = build_parser(only, is_first=list(words[:1]) == [only])
    arguments, unknown = parser.parse_known_args(words)
    if unknown:
        own: CommandParser = getattr(arguments, "parser", parser)
        own.refuse_unknown(unknown)
    return arguments


def build_parser(only: str | None = None, *, is_first: bool = False) -> CommandParser:
    """The parser of all commands. only: the command that is to be run: others have no options then. is_first:
    it is the first word: others are known by name alone, as nobody will see their summaries."""
    parser = CommandParser(
        prog="firelane",
        names=COMMAND_NAMES,
        description="Serve large language models on scarce hardware.",
        epilog="Environment variables: FIRELANE_ALLOW_HTTP, FIRELANE_CACHE_DIR, FIRELANE_CACHE_LIMIT_GIB, "
        "FIRELANE_CXX, FIRELANE_ISA, FIRELANE_LOG_LEVEL.",
    )
    parser.add_argument("--version", action="version", version=f"firelane {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, package in COMMANDS.items():
        if is_first and only in COMMANDS and name != only:
            commands.add_parser(name)
            continue
        command = import_module(f"firelane.cli.{package}{name}")
        summary = " ".join((command.__doc__ or "").partition("\n\n")[0].split())
        sub = commands.add_parser(name, help=summary, description=summary)
        if only is None or only == name:
            command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    parser.name_parsers()
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. A FirelaneError, or one of the system, ends as one line on
    standard error."""
    _write_anything()
    words = sys.argv[1:] if argv is None else argv
    begun: EngineAhead | None = None
    try:
        begun = _begin(words)
        return _run(_parse(words), begun)
    except FirelaneError as error:
        return _failed(error)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`). The interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        return _failed(error, FirelaneError(f"{where}{error.strerror or error}"))
    finally:
        if begun is not None:
            begun.close()


def _begin(words: Sequence[str]) -> EngineAhead | None:
    """Start the work of a command whose options take a while to read; None for other commands."""
    if list(words[:1]) != ["serve"]:
        return None
    from firelane.cli.ahead import begin_serve

    return begin_serve(words[1:])


def _run(arguments: argparse.Namespace, begun: EngineAhead | None) -> int:
    from firelane import env
    from firelane.storage import WRITTEN_BY_OTHERS, keep_from_others

    keep_from_others(WRITTEN_BY_OTHERS)
    environment = env.read()
    for name in env.unknown():
        print(f"firelane: warning: environment variable {name} means nothing here", file=sys.stderr)
    arguments.begun = begun
    return arguments.run(arguments, environment)


def _failed(error: Exception, told: FirelaneError | None = None) -> int:
    """The exit code, after the error's line. told: in place of an error that has no such line."""
    from firelane import env

    if env.shows_tracebacks():
        raise error
    told = told or (error if isinstance(error, FirelaneError) else FirelaneError(str(error)))
    print(f"firelane: error: {told}", file=sys.stderr)
    return told.exit_code


def _write_anything() -> None:
    """Have output in an encoding that lacks a character show its number, in place of an end by an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
