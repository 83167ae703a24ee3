"""Options of a worker: Dynamo's own, and those of `firelane serve` that are of the engine."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from dynamo.common.backend.worker import WorkerConfig
from dynamo.common.configuration.groups.runtime_args import DynamoRuntimeArgGroup, DynamoRuntimeConfig
from dynamo.common.constants import DisaggregationMode
from dynamo.common.utils.runtime import parse_endpoint

from firelane import env
from firelane.engine_config import CARE, ENGINE, PAGES, EngineConfig
from firelane.errors import UsageError
from firelane.node.remote_peers import RemotePeersConfig
from firelane.options import OptionSet, add_options, fields
from firelane.server.engine_shares import EngineOptions
from firelane.server.options import shared as options
from firelane.server.options.engine import engine_config, engine_options
from firelane.server.options.router import TRANSFER, PageExchange, page_exchange, with_nixl
from firelane.server.options.travelling_pages import check_travelling
from firelane.sources.resolve import resolve
from firelane.text.tokens.tokenizer_source import tokenizer_directory

MODES = ("agg", "prefill", "decode")
EMBEDDED_NAME = "firelane-embedded"
OPTIONS = OptionSet((EngineConfig, EngineOptions, PageExchange), (PAGES, CARE, ENGINE), without=("role",))


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """engine_timeout_s: an engine that shows no life for so long is replaced. peers: how pages travel to and
    from engines of other workers; None: they do not."""

    engine: EngineConfig
    worker: WorkerConfig
    engine_timeout_s: float
    peers: RemotePeersConfig | None = None


def read_options(arguments: Sequence[str] | None) -> WorkerOptions:
    """Raises FirelaneError; may fetch a model."""
    given = _parser().parse_args(arguments)
    values, environment = vars(given), env.read()
    model_dir = resolve(given.model, cache_dir=environment.cache_dir)
    tokenizer_dir = tokenizer_directory(model_dir, environment.cache_dir)
    engine = engine_config(values, model_dir, environment, tokenizer_dir)
    engine = msgspec.structs.replace(engine, cache_events=engine.prefix_cache)
    if given.disaggregation_mode != "agg":
        check_travelling(engine, "--disaggregation-mode")
    peers = _peers(given, engine, environment)
    if peers is not None:
        engine = msgspec.structs.replace(engine, kv_transfer_address=peers.address(0))
    engine = with_nixl(engine, peers)
    timeout_s = engine_options(values, engine).engine_timeout_s
    return WorkerOptions(
        engine=engine, worker=_worker(given, engine), engine_timeout_s=timeout_s, peers=peers
    )


def _peers(
    given: argparse.Namespace, engine: EngineConfig, environment: env.Environment
) -> RemotePeersConfig | None:
    exchange = PageExchange(**fields(PageExchange, vars(given)))
    if exchange.address is None:
        return None
    if given.disaggregation_mode == "agg":
        raise UsageError(f"{TRANSFER}: give --disaggregation-mode prefill or decode with it")
    return page_exchange(exchange, engine, 1, environment)


def _worker(given: argparse.Namespace, engine: EngineConfig) -> WorkerConfig:
    name = given.served_model_name or given.model or EMBEDDED_NAME
    mode = DisaggregationMode(given.disaggregation_mode)
    runtime = DynamoRuntimeConfig.from_cli_args(given)
    runtime.validate()
    component = "prefill" if mode is DisaggregationMode.PREFILL else "backend"
    endpoint = runtime.endpoint or f"dyn://{runtime.namespace}.{component}.generate"
    runtime.namespace, component, runtime.endpoint = parse_endpoint(endpoint)
    return WorkerConfig.from_runtime_config(
        runtime,
        model_name=str(engine.tokenizer_dir or engine.model_dir),
        served_model_name=name,
        component=component,
        disaggregation_mode=mode,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("firelane-dynamo", description=__doc__, allow_abbrev=False)
    options.add_model(parser)
    group = parser.add_argument_group("worker")
    group.add_argument(
        "--served-model-name", metavar="NAME", help="by which requests name it (default: MODEL)"
    )
    group.add_argument(
        "--disaggregation-mode",
        choices=MODES,
        default="agg",
        help="part of a request that comes here: all, the prompt, or what follows (default: %(default)s)",
    )
    add_options(parser, OPTIONS)
    DynamoRuntimeArgGroup().add_arguments(parser)
    return parser
