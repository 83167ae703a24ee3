"""Run one engine for gateways on other hosts (`firelane serve MODEL --engines HOST`).

SIGINT or SIGTERM ends it: what is in flight may finish within --drain-timeout, the rest goes on at other
engines; a second signal ends it at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.server.options import shared as options
from firelane.server.options.config_file import add_config, given_values

if TYPE_CHECKING:
    from firelane.env import Environment


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from firelane.options import add_options
    from firelane.server.options.sets import ENGINE_COMMAND

    options.add_model(parser)
    add_config(parser)
    add_options(parser, ENGINE_COMMAND)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from firelane.cli.serve import display_for
    from firelane.cluster.addresses import Address
    from firelane.cluster.config import EngineListener
    from firelane.link.tls import MutualTls, TlsFiles, no_context
    from firelane.options import fields
    from firelane.server.engine_service import serve_engine
    from firelane.server.options import cluster as cluster_options
    from firelane.server.options import engine as engine_options
    from firelane.server.options import pages as page_options
    from firelane.server.options.sets import ENGINE_COMMAND
    from firelane.sources.resolve import resolve
    from firelane.text.tokens.tokenizer_source import tokenizer_directory

    values = given_values(arguments, ENGINE_COMMAND)
    listener = EngineListener(**fields(EngineListener, values))
    tls = cluster_options.cluster_tls(values, "--tls")
    address = Address(listener.host, listener.port)
    cluster_options.check_plain(address, tls, "--tls")
    context = no_context if tls is None else MutualTls(tls, TlsFiles.server_context).context
    display = display_for(listener.log_format, environment)
    model_dir = resolve(arguments.model, progress=display)
    tokenizer_dir = tokenizer_directory(model_dir, environment.cache_dir)
    engine = engine_options.engine_config(values, model_dir, environment, tokenizer_dir)
    options.log_resolved("engine", engine, as_json=listener.log_format == "json")
    engine_options.tell_sandbox(engine, environment)
    own = page_options.with_pages(values, engine_options.engine_options(values, engine), environment)
    return serve_engine(own, address, context, display, listener.drain_s)
