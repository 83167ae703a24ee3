"""Change which part of requests an engine of a running server does: prefill, decode or both."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", nargs="?", metavar="ENGINE", help="its name; without it all are listed")
    parser.add_argument(
        "role",
        nargs="?",
        choices=("prefill", "decode", "both"),
        metavar="ROLE",
        help="prefill, decode or both, from now on",
    )
    parser.add_argument("--model", metavar="NAME", help="of the server's models (default: the first)")
    node_client.add_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:  # noqa: ARG001
    print("\n".join(node_client.roles(arguments)))
    return 0
