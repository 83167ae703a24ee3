"""Serve a model over HTTP with the OpenAI API.

SIGINT or SIGTERM ends it: what is in flight may finish within DRAIN_S seconds, the rest fails; a second
signal ends it at once. The exit code is then 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from firelane.cli import gateway_options, options
from firelane.errors import UsageError
from firelane.gateway.parsers import REASONING_PARSERS, TOOL_PARSERS

if TYPE_CHECKING:
    from firelane.env import Environment

EMBEDDED_NAME = "firelane-embedded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    _add_server(parser)
    _add_parsers(parser)
    gateway_options.add_access(parser)
    gateway_options.add_limits(parser)
    gateway_options.add_storage(parser)
    gateway_options.add_telemetry(parser)
    options.add_engine(parser)


def _add_server(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    server.add_argument(
        "--port", type=options.port, default=8000, help="default: %(default)s; 0 takes a free one"
    )
    server.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may give; the first is reported (default: MODEL)",
    )
    server.add_argument(
        "--max-queue",
        type=options.count,
        default=1024,
        metavar="N",
        help="requests that may wait before others get status 429 (default: %(default)s)",
    )
    server.add_argument(
        "--alias",
        type=_alias,
        action="append",
        default=[],
        metavar="ALIAS=NAME",
        help="a further name for a served model, such as @cf/org/model=NAME; may be given several times",
    )
    server.add_argument(
        "--max-stored-responses",
        type=options.count,
        default=1024,
        metavar="N",
        help="answers of /v1/responses kept, to be read and continued (default: %(default)s; 0: none)",
    )


def _add_parsers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("answers of the model")
    group.add_argument(
        "--tool-parser",
        choices=TOOL_PARSERS,
        default="auto",
        help="how the model writes calls of tools (default: %(default)s: what its chat template shows)",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default="auto",
        help="how the model marks its reasoning (default: %(default)s: what its chat template shows)",
    )


def _alias(text: str) -> tuple[str, str]:
    alias, sign, name = text.partition("=")
    if not alias or not sign or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not ALIAS=NAME")
    return alias, name


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.progress import ProgressDisplay, ProgressEvents
    from firelane.cli.service import serve
    from firelane.gateway.config import GatewayConfig
    from firelane.telemetry import logs
    from firelane.weights.sources import resolve
    from firelane.wire.engine_config import EngineConfig

    try:
        logs.set_up(environment.log_level, arguments.log_format)
    except ValueError as error:
        raise UsageError(f"FIRELANE_LOG_LEVEL: {error}") from error
    settings = gateway_options.gateway_settings(arguments)
    as_json = arguments.log_format == "json"
    display = ProgressEvents() if as_json else ProgressDisplay()
    model_dir = resolve(arguments.model, progress=display)
    names = tuple(arguments.served_model_name or [served_name(arguments.model)])
    settings |= gateway_options.storage_settings(arguments, environment.cache_dir, names[0])
    config = GatewayConfig(
        model_dir=model_dir,
        served_model_names=names,
        host=arguments.host,
        port=arguments.port,
        max_queue=arguments.max_queue,
        aliases=tuple(arguments.alias),
        max_stored_responses=arguments.max_stored_responses,
        tool_parser=arguments.tool_parser,
        reasoning_parser=arguments.reasoning_parser,
        **settings,
    )
    engine = EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        log_format=arguments.log_format,
        **options.engine_settings(arguments),
    )
    show = options.log_resolved if as_json else options.print_resolved
    show("gateway", config)
    show("engine", engine)
    return serve(config, engine, display)


def served_name(model: str | None) -> str:
    """A directory goes by its name, a hub id by itself."""
    if model is None:
        return EMBEDDED_NAME
    path = Path(model).expanduser()
    return path.resolve().name if path.is_dir() else model
