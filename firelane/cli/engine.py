"""Run one engine for gateways on other hosts (`firelane serve MODEL --engines HOST`).

SIGINT or SIGTERM ends it: what is in flight may finish within --drain-timeout, the rest goes on at other
engines; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.cli import cluster_options, engine_options, options, page_options, tier_options

if TYPE_CHECKING:
    from firelane.env import Environment

DRAIN_S = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    group = parser.add_argument_group("gateways")
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    group.add_argument(
        "--port",
        type=options.port,
        default=cluster_options.DEFAULT_PORT,
        help="default: %(default)s; 0 takes a free one",
    )
    cluster_options.add_tls(group)
    group.add_argument(
        "--drain-timeout",
        type=options.positive_float,
        default=DRAIN_S,
        metavar="S",
        help="seconds for requests in flight when it is ended (default: %(default)s)",
    )
    group.add_argument(
        "--log-format", choices=("text", "json"), default="text", help="form of a log line (default: text)"
    )
    options.add_engine(parser)
    tier_options.add_tiers(parser)
    page_options.add_pages(parser)
    engine_options.add_care(parser.add_argument_group("care of the engine"))


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.engine_service import serve_engine
    from firelane.cli.serve import display_for
    from firelane.cluster.addresses import Address
    from firelane.engine_config import EngineConfig
    from firelane.sources.resolve import resolve
    from firelane.text.tokenizer_source import tokenizer_directory

    tls = cluster_options.cluster_tls(arguments, "--tls")
    address = Address(arguments.host, arguments.port)
    cluster_options.check_plain(address, tls, "--tls")
    context = tls.server_context() if tls is not None else None
    display = display_for(arguments.log_format, environment)
    model_dir = resolve(arguments.model, progress=display)
    engine = EngineConfig(
        model_dir=model_dir,
        cache_dir=environment.cache_dir,
        tokenizer_dir=tokenizer_directory(model_dir, environment.cache_dir),
        log_format=arguments.log_format,
        sandbox=not arguments.no_sandbox,
        tiers=tier_options.tiers_config(arguments),
        **options.engine_settings(arguments),
    )
    options.log_resolved("engine", engine, as_json=arguments.log_format == "json")
    engine_options.tell_sandbox(engine, environment)
    own = page_options.with_pages(arguments, engine_options.cared_for(arguments, engine), environment)
    return serve_engine(own, address, context, display, arguments.drain_timeout)
