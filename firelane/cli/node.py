"""Serve several models from one file, within one memory budget: models come when they are asked for.

SIGHUP reads the file again; SIGINT or SIGTERM ends the node as they end `serve`.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.cli import serve
from firelane.errors import UsageError
from firelane.server.options import shared as options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from firelane.cli.node_setup import NodeSetup
    from firelane.env import Environment
    from firelane.server.model_spec import ModelSpec
    from firelane.server.node_plan import NodePlan

log = logging.getLogger(__name__)


NODE_OPTIONS = ("host", "port", "log_format")
"""Options that count in place of the file's keys."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from firelane.gateway.config import GatewayConfig
    from firelane.options import OptionSet, add_options

    parser.add_argument("config", type=Path, metavar="CONFIG.toml", help="the node's models and settings")
    parser.add_argument(
        "--check", action="store_true", help="read the file, tell what it says, and serve nothing"
    )
    add_options(parser, OptionSet((GatewayConfig,), only=NODE_OPTIONS))


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from dataclasses import replace

    from firelane.cli.node_setup import NodeReader
    from firelane.native.host_memory import available_bytes
    from firelane.node.memory_groups import delegated_groups
    from firelane.server.service import serve as run_service

    given = {key: value for key, value in vars(arguments).items() if key in NODE_OPTIONS}
    reader = NodeReader(arguments.config, environment, available_bytes, given)
    setup = reader.read()
    display = serve.display_for(setup.gateway.log_format, environment)
    if arguments.check:
        display.close()
        print("\n".join([*setup.lines(), *setup.unknown_tenants()]))
        return 0
    _warn(setup)
    options.log_resolved("gateway", setup.gateway, as_json=setup.gateway.log_format == "json")

    def reread() -> tuple[NodePlan, Sequence[ModelSpec]]:
        found = reader.read()
        _warn(found)
        return found.plan, found.models

    plan = replace(setup.plan, groups=delegated_groups())
    return run_service(setup.gateway, setup.models, display, plan, reread)


def _warn(setup: NodeSetup) -> None:
    """Log what is likely to be a mistake. A wrong key file is told by whoever reads it for the gateway."""
    with contextlib.suppress(UsageError):
        for line in setup.unknown_tenants():
            log.warning("tenant_unknown %s", line)
