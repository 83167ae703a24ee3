"""Put a model of a running node to standby: its memory goes back, its process stays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli.node_commands import node_client

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    node_client.add_model(parser)


def run(arguments: argparse.Namespace, environment: Environment) -> int:  # noqa: ARG001
    return node_client.change(arguments, "sleep")
