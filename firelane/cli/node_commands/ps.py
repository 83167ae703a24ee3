"""List the models of a running node, with their states and their memory."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    node_client.add_server(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:  # noqa: ARG001
    print("\n".join(node_client.report(arguments)))
    return 0
