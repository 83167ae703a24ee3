"""Serve a model over HTTP with the OpenAI API.

SIGINT or SIGTERM ends it: what is in flight may finish within --drain-timeout, the rest fails; a second
signal ends it at once. The exit code is then 0.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from firelane.cli import (
    cluster_options,
    engine_options,
    gateway_options,
    host_options,
    options,
    router_options,
    tier_options,
)
from firelane.errors import UsageError
from firelane.text.parsers import REASONING_ALIASES, REASONING_PARSERS, TOOL_ALIASES, TOOL_PARSERS

if TYPE_CHECKING:
    from firelane.cli.engine_shares import EngineOptions
    from firelane.cli.progress import Progress as Display
    from firelane.cli.progress import ProgressDisplay, ProgressEvents
    from firelane.engine_config import EngineConfig, HostsConfig
    from firelane.env import Environment
    from firelane.gateway.config import GatewayConfig, ModelConfig

EMBEDDED_NAME = "firelane-embedded"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_model(parser)
    add_server(parser)
    _add_parsers(parser)
    gateway_options.add_access(parser)
    gateway_options.add_limits(parser)
    gateway_options.add_requests(parser)
    gateway_options.add_storage(parser)
    gateway_options.add_telemetry(parser)
    options.add_engine(parser)
    host_options.add_hosts(parser)
    engine_options.add_replicas(parser)
    cluster_options.add_engines(parser)
    tier_options.add_tiers(parser)
    router_options.add_routers(parser)


def add_server(parser: argparse.ArgumentParser) -> None:
    server = parser.add_argument_group("server")
    server.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    server.add_argument(
        "--port",
        type=options.port,
        default=gateway_options.DEFAULT_PORT,
        help="default: %(default)s; 0 takes a free one",
    )
    server.add_argument(
        "--gateways",
        type=options.processes,
        default=1,
        metavar="N",
        help="gateway processes that share the port (default: %(default)s)",
    )
    server.add_argument(
        "--served-model-name",
        nargs="+",
        metavar="NAME",
        help="names that requests may give; the first is reported (default: MODEL)",
    )
    server.add_argument(
        "--model",
        type=_named_model,
        action="append",
        default=[],
        dest="more_models",
        metavar="[NAME=]MODEL",
        help="a further model, with an engine of its own; may be given several times",
    )
    server.add_argument(
        "--alias",
        type=_alias,
        action="append",
        default=[],
        metavar="ALIAS=NAME",
        help="a further name for a served model, such as @cf/org/model=NAME; may be given several times",
    )
    _add_waiting(server)


def _add_waiting(server: Any) -> None:
    server.add_argument(
        "--max-queue",
        type=options.count,
        default=1024,
        metavar="N",
        help="requests that may wait before others get status 429 (default: %(default)s)",
    )
    server.add_argument(
        "--wait",
        action=argparse.BooleanOptionalAction,
        help="requests wait while their model loads, instead of getting status 503 "
        "(default: with one model they do)",
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
        "--chat-template",
        action="append",
        default=[],
        type=_named_model,
        dest="chat_templates",
        metavar="[NAME=]FILE",
        help="a file with a Jinja chat template, in place of the model's own; with several models, NAME is "
        "one of the served names",
    )
    group.add_argument(
        "--tool-parser",
        choices=(*TOOL_PARSERS, *TOOL_ALIASES),
        metavar="NAME",
        default="auto",
        help=f"how the model writes calls of tools (default: %(default)s: what its chat template shows); "
        f"one of {', '.join(TOOL_PARSERS)}",
    )
    group.add_argument(
        "--reasoning-parser",
        choices=(*REASONING_PARSERS, *REASONING_ALIASES),
        metavar="NAME",
        default="auto",
        help=f"how the model marks its reasoning (default: %(default)s: what its chat template shows); "
        f"one of {', '.join(REASONING_PARSERS)}",
    )


def _named_model(text: str) -> tuple[str, str]:
    """(name, source); the name is "" where none is given. A directory may have an equals sign in its name."""
    name, sign, source = text.partition("=")
    if not sign or Path(text).expanduser().exists() or "/" in name:
        return "", text
    if not name or not source:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=MODEL or MODEL")
    return name, source


def _alias(text: str) -> tuple[str, str]:
    alias, sign, name = text.partition("=")
    if not alias or not sign or not name:
        raise argparse.ArgumentTypeError(f"'{text}' is not ALIAS=NAME")
    return alias, name


def run(arguments: argparse.Namespace, environment: Environment) -> int:
    from dataclasses import replace

    from firelane.cli.node_plan import fixed_models
    from firelane.cli.service import serve

    as_json = arguments.log_format == "json"
    display = display_for(arguments.log_format, environment)
    settings = gateway_options.gateway_settings(arguments)
    models = _models(arguments, display, environment.cache_dir)
    hosts = host_options.hosts_config(arguments)
    if hosts is not None and hosts.own > 0:
        return host_options.follow(_engine(arguments, models[0], environment, hosts))
    name = models[0].names[0]
    settings |= gateway_options.storage_settings(arguments, environment.cache_dir, name, arguments.port)
    config = gateway_config(arguments, models, settings)
    options.log_resolved("gateway", config, as_json=as_json)
    remote = cluster_options.remote_config(arguments)
    engines: list[EngineOptions] = []
    for index, model in enumerate(models):
        engine = _engine(arguments, model, environment, hosts)
        own = engine_options.engine_options(arguments, engine, len(models), index)
        engines.append(router_options.with_routers(arguments, replace(own, remote=remote), environment))
        if arguments.engines is None:
            options.log_resolved("engine", engine, as_json=as_json)
            if index == 0:
                engine_options.tell_sandbox(engine, environment)
    return serve(config, fixed_models(config, engines), display)


def _engine(
    arguments: argparse.Namespace, model: ModelConfig, environment: Environment, hosts: HostsConfig | None
) -> EngineConfig:
    from firelane.engine_config import EngineConfig

    assert model.model_dir is not None
    return EngineConfig(
        model_dir=model.model_dir,
        cache_dir=environment.cache_dir,
        tokenizer_dir=model.tokenizer_dir,
        log_format=arguments.log_format,
        sandbox=not arguments.no_sandbox,
        hosts=hosts,
        tiers=tier_options.tiers_config(arguments),
        **options.engine_settings(arguments),
    )


def display_for(log_format: str, environment: Environment) -> ProgressDisplay | ProgressEvents:
    """Display of progress; the log is set up to leave it alone. Raises UsageError."""
    from firelane.cli.progress import ProgressDisplay, ProgressEvents
    from firelane.telemetry import logs

    as_json = log_format == "json"
    display = ProgressEvents() if as_json else ProgressDisplay(words={"pack": "packing weights, once"})
    try:
        stream = None if isinstance(display, ProgressEvents) else display
        logs.set_up(environment.log_level, log_format, stream)
    except ValueError as error:
        raise UsageError(f"FIRELANE_LOG_LEVEL: {error}") from error
    return display


def gateway_config(
    arguments: argparse.Namespace, models: list[ModelConfig], settings: dict[str, Any]
) -> GatewayConfig:
    from firelane.gateway.config import GatewayConfig

    return GatewayConfig(
        models=tuple(models),
        host=arguments.host,
        port=arguments.port,
        gateways=arguments.gateways,
        max_queue=arguments.max_queue,
        max_stored_responses=arguments.max_stored_responses,
        wait=len(models) == 1 if arguments.wait is None else arguments.wait,
        **settings,
    )


def _models(arguments: argparse.Namespace, display: Display, cache_dir: Path) -> list[ModelConfig]:
    """Models of MODEL and each --model, in this order. Raises UsageError."""
    from firelane.gateway.config import ModelConfig
    from firelane.sources.resolve import resolve
    from firelane.text.tokenizer_source import tokenizer_directory

    given: list[tuple[tuple[str, ...], str | None]] = []
    if arguments.model is not None or not arguments.more_models:
        names = arguments.served_model_name or [served_name(arguments.model)]
        given.append((tuple(names), arguments.model))
    elif arguments.served_model_name is not None:
        raise UsageError("--served-model-name names MODEL: with --model alone, write --model NAME=DIR")
    given += [((name or served_name(source),), source) for name, source in arguments.more_models]
    served = [name for names, _ in given for name in names]
    for alias, name in arguments.alias:
        if name not in served:
            known = ", ".join(served)
            raise UsageError(f"--alias {alias}={name}: '{name}' is not served; served are {known}")
    templates = _templates(arguments.chat_templates, [names for names, _ in given])
    found = [(names, resolve(source, progress=display)) for names, source in given]
    return [
        ModelConfig(
            model_dir=model_dir,
            tokenizer_dir=tokenizer_directory(model_dir, cache_dir),
            names=names,
            aliases=tuple((alias, name) for alias, name in arguments.alias if name in names),
            chat_template=templates.get(names),
            tool_parser=arguments.tool_parser,
            reasoning_parser=arguments.reasoning_parser,
            routing=arguments.routing,
            role_targets=engine_options.role_targets(arguments),
            shares_pages=arguments.share_pages,
        )
        for names, model_dir in found
    ]


def _templates(given: list[tuple[str, str]], served: list[tuple[str, ...]]) -> dict[tuple[str, ...], Path]:
    """The template of each model that is given one, by the model's names. Raises UsageError."""
    found: dict[tuple[str, ...], Path] = {}
    for name, file in given:
        means = [names for names in served if name in names] if name else served
        if len(means) != 1:
            known = ", ".join(name for names in served for name in names)
            why = f"'{name}' is not served" if name else "there are several models: write NAME=FILE"
            raise UsageError(f"--chat-template {file}: {why}; served are {known}")
        found[means[0]] = Path(file).expanduser()
    return found


def served_name(model: str | None) -> str:
    """A directory, or a GGUF file, goes by its name, a hub id by itself."""
    if model is None:
        return EMBEDDED_NAME
    if "://" in model:
        return Path(model).name.removesuffix(".gguf")
    path = Path(model).expanduser()
    try:
        return path.resolve().name if path.is_dir() else path.stem if path.is_file() else model
    except OSError:
        return model  # whoever opens it says why it cannot be
