"""Options of `firelane serve` for routers outside."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from firelane.errors import UsageError

if TYPE_CHECKING:
    from firelane.cli.engine_shares import EngineOptions
    from firelane.gateway.kv_events.config import KvEventsConfig


def add_routers(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("routers outside")
    group.add_argument(
        "--kv-events-config",
        metavar="JSON",
        help="publish which blocks of tokens engines have cached, over ZeroMQ as vLLM does, for routers "
        "outside (needs the extra `kv-events`); for example "
        """'{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'""",
    )


def with_routers(arguments: argparse.Namespace, options: EngineOptions) -> EngineOptions:
    """The same engines with what the options of `add_routers` say. Raises UsageError."""
    import dataclasses

    import msgspec

    engine, events = options.engine, _kv_events(arguments, options)
    if events is not None:
        engine = msgspec.structs.replace(engine, cache_events=True)
    return dataclasses.replace(options, engine=engine, kv_events=events)


def _kv_events(arguments: argparse.Namespace, options: EngineOptions) -> KvEventsConfig | None:
    from firelane.gateway.kv_events.config import OPTION, KvEventsConfig

    text: str | None = arguments.kv_events_config
    config = None if text is None else KvEventsConfig.parse(text)
    if config is None:
        return None
    _refuse(
        OPTION,
        (bool(arguments.engines), "--engines", "engines of other hosts do not tell of their caches"),
        (options.models > 1, "several models", "subscribers tell engines apart by their ports"),
        (not options.engine.prefix_cache, "--no-prefix-cache", "without the cache there are no events"),
        (arguments.take_over and config.binds, "--take-over", "the server before has the ports"),
    )
    return config


def _refuse(option: str, *cases: tuple[bool, str, str]) -> None:
    for is_wrong, given, why in cases:
        if is_wrong:
            raise UsageError(f"{given} beside {option}: {why}; leave out one or the other")
