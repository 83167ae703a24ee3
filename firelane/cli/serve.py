"""Serve a model over HTTP with the OpenAI API.

SIGINT or SIGTERM ends it: what is in flight may finish within --drain-timeout, the rest fails; a second
signal ends it at once. The exit code is then 0.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.errors import UsageError
from firelane.server.options import shared as options
from firelane.server.options.config_file import add_config, given_values

if TYPE_CHECKING:
    from firelane.engine_config import EngineConfig, HostsConfig
    from firelane.env import Environment
    from firelane.gateway.config import ModelConfig
    from firelane.node.engine_process import EngineAhead
    from firelane.options import Values
    from firelane.server.engine_shares import EngineOptions
    from firelane.server.progress import ProgressDisplay, ProgressEvents


MOST_TOLD = 5
"""Names of models that a start tells."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from firelane.options import add_options
    from firelane.server.options.sets import SERVE

    parser.add_argument("source", nargs="?", metavar="MODEL", help=options.MODEL_HELP)
    add_config(parser)
    add_options(parser, SERVE)


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from dataclasses import replace

    from firelane.options import fields
    from firelane.server.model_spec import fixed_models
    from firelane.server.node_plan import FIXED
    from firelane.server.options import gateway as gateway_options
    from firelane.server.options import hosts as host_options
    from firelane.server.options.served_models import ServedModels
    from firelane.server.options.sets import SERVE

    values = given_values(arguments, SERVE)
    as_json = values.get("log_format") == "json"
    display = display_for(values.get("log_format", "text"), environment)
    gateway_options.check_access(values)
    asked = ServedModels(model=arguments.source, **fields(ServedModels, values))
    if asked.model is None and not asked.more:
        tell_models_here(display)
    models = asked.configs(values, display, environment.cache_dir)
    hosts = host_options.hosts_config(values)
    if hosts is not None and hosts.own > 0:
        return host_options.follow(_engine(values, models[0], environment, hosts))
    config = gateway_options.gateway_config(values, models, environment.cache_dir, models[0].names[0])
    options.log_resolved("gateway", config, as_json=as_json)
    engines = _engines(values, models, environment, hosts, as_json=as_json)
    specs, plan = fixed_models(config, engines), FIXED
    ahead: EngineAhead | None = arguments.begun
    if ahead is not None:
        if config.gateways == 1 and specs[0].has_lone_engine:
            ahead.configure(*specs[0].engine_configs())
        plan = replace(FIXED, start=ahead.start)
    from firelane.server.service import serve  # now: the engine loads meanwhile

    return serve(config, specs, display, plan)


def _engines(
    values: Values,
    models: list[ModelConfig],
    environment: Environment,
    hosts: HostsConfig | None,
    *,
    as_json: bool,
) -> list[EngineOptions]:
    """The engines of each model. Raises UsageError."""
    from dataclasses import replace

    from firelane.server.options import cluster as cluster_options
    from firelane.server.options import engine as engine_options
    from firelane.server.options import router as router_options
    from firelane.server.options.sets import SERVE

    remote = cluster_options.remote_config(values, SERVE)
    engine_options.check_controller(values)
    engines: list[EngineOptions] = []
    for index, model in enumerate(models):
        engine = _engine(values, model, environment, hosts)
        own = engine_options.engine_options(values, engine, len(models), index)
        engines.append(router_options.with_routers(values, replace(own, remote=remote), environment))
        if remote is None:
            options.log_resolved("engine", engine, as_json=as_json)
            if index == 0:
                engine_options.tell_sandbox(engine, environment)
    return engines


def _engine(
    values: Values, model: ModelConfig, environment: Environment, hosts: HostsConfig | None
) -> EngineConfig:
    from firelane.server.options.engine import engine_config

    assert model.model_dir is not None
    return engine_config(values, model.model_dir, environment, model.tokenizer_dir, hosts)


def tell_models_here(display: ProgressDisplay | ProgressEvents) -> None:
    """Say which models this machine has, to a person who has named none."""
    from firelane import env
    from firelane.server.progress import ProgressDisplay
    from firelane.sources.others import found_models

    names = [model.name for model in found_models(env.model_places())]
    if names and isinstance(display, ProgressDisplay):
        more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
        told = ", ".join(names[:MOST_TOLD])
        display.say(f"models   this machine has {told}{more} (firelane list): firelane serve NAME serves one")


def display_for(log_format: str, environment: Environment) -> ProgressDisplay | ProgressEvents:
    """Display of progress; the log is set up to leave it alone. Raises UsageError."""
    from firelane.server.progress import ProgressDisplay, ProgressEvents
    from firelane.telemetry import logs

    as_json = log_format == "json"
    display = ProgressEvents() if as_json else ProgressDisplay(words={"pack": "packing weights, once"})
    try:
        stream = None if isinstance(display, ProgressEvents) else display
        logs.set_up(environment.log_level, log_format, stream)
    except ValueError as error:
        raise UsageError(f"FIRELANE_LOG_LEVEL: {error}") from error
    return display
