"""The `firelane` command: one file per subcommand, each with `add_arguments` and `run`.

A command builds the config of each part that it composes and prints the resolved values. What is heavy is
imported inside `run`: `firelane --help` loads little more than argparse.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from firelane import __version__
from firelane.cli import bench, doctor, generate, keys, pack, program, serve, unpack, verify, version
from firelane.errors import FirelaneError

COMMANDS = (serve, generate, keys, pack, unpack, verify, bench, doctor, program, version)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="firelane",
        description="Serve large language models on scarce hardware.",
        epilog="Environment variables: FIRELANE_CACHE_DIR, FIRELANE_CXX, FIRELANE_ISA, FIRELANE_LOG_LEVEL.",
    )
    parser.add_argument("--version", action="version", version=f"firelane {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2]
        summary = (command.__doc__ or "").partition("\n")[0]
        sub = commands.add_parser(name, help=summary, description=summary)
        command.add_arguments(sub)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. A FirelaneError ends as one line on standard error."""
    arguments = build_parser().parse_args(argv)
    from firelane import env

    try:
        environment = env.read()
        for name in env.unknown():
            print(f"firelane: warning: environment variable {name} means nothing here", file=sys.stderr)
        return arguments.run(arguments, environment)
    except FirelaneError as error:
        if env.shows_tracebacks():
            raise
        print(f"firelane: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`). The interpreter must not try to flush what is left.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
