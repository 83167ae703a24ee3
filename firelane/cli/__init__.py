"""The `firelane` command: one file per subcommand, each with `add_arguments` and `run`.

A command builds the config of each part that it composes and prints the resolved values. What is heavy is
imported inside `run`: `firelane --help` loads little more than argparse.
"""

from __future__ import annotations

import argparse
import difflib
import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from typing import NoReturn

from firelane import __version__
from firelane.cli import bench, chat, doctor, engine, generate, keys, node, plan, program, serve, version
from firelane.cli.model_commands import cache, pack, pull, quantize, rm, show, unpack, verify
from firelane.cli.node_commands import load, ps, role, sleep, unload, wake
from firelane.errors import FirelaneError

COMMANDS = (
    serve,
    engine,
    node,
    ps,
    load,
    sleep,
    wake,
    unload,
    role,
    chat,
    generate,
    show,
    keys,
    pack,
    unpack,
    verify,
    quantize,
    pull,
    rm,
    cache,
    bench,
    doctor,
    plan,
    program,
    version,
)
COMMAND_NAMES = tuple(command.__name__.rpartition(".")[2] for command in COMMANDS)
INVALID_COMMAND = re.compile(r"^argument COMMAND: invalid choice: '([^']*)'")


class _Parser(argparse.ArgumentParser):
    """Parser that asks for the option or command that was probably meant."""

    def error(self, message: str) -> NoReturn:
        """Two lines: what is wrong, and where all options are told."""
        choice = INVALID_COMMAND.search(message)
        meant = _meant(choice[1], COMMAND_NAMES) if choice else ""
        self.exit(2, f"{self.prog}: error: {message}{meant}\nusage: {self.prog} --help tells the options\n")

    def own_options(self) -> list[str]:
        return [name for action in self._actions for name in action.option_strings]

    def name_parsers(self) -> None:
        """Have the namespace tell the parser of the command that was given: this one, or one below it."""
        self.set_defaults(parser=self)
        for action in self._actions:
            below = action.choices.values() if isinstance(action.choices, dict) else ()
            for sub in (sub for sub in below if isinstance(sub, _Parser)):
                sub.name_parsers()


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options that nobody knows are told by the parser of their command."""
    words = sys.argv[1:] if argv is None else argv
    parser = build_parser(next((word for word in words if not word.startswith("-")), ""))
    arguments, unknown = parser.parse_known_args(argv)
    if unknown:
        own: _Parser = getattr(arguments, "parser", parser)
        meant = _meant(unknown[0], own.own_options())
        own.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
    return arguments


def _meant(given: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(given.partition("=")[0], known, n=1)
    return f": did you mean {near[0]}?" if near else ""


def build_parser(only: str | None = None) -> _Parser:
    """The parser of all commands. only: the command that is to be run: others have no options then."""
    parser = _Parser(
        prog="firelane",
        description="Serve large language models on scarce hardware.",
        epilog="Environment variables: FIRELANE_ALLOW_HTTP, FIRELANE_CACHE_DIR, FIRELANE_CACHE_LIMIT_GIB, "
        "FIRELANE_CXX, FIRELANE_ISA, FIRELANE_LOG_LEVEL.",
    )
    parser.add_argument("--version", action="version", version=f"firelane {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in zip(COMMAND_NAMES, COMMANDS, strict=True):
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
    try:
        return _run(_parse(argv))
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


def _run(arguments: argparse.Namespace) -> int:
    from firelane import env
    from firelane.storage import WRITTEN_BY_OTHERS, keep_from_others

    keep_from_others(WRITTEN_BY_OTHERS)
    environment = env.read()
    for name in env.unknown():
        print(f"firelane: warning: environment variable {name} means nothing here", file=sys.stderr)
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
