"""From the file of a node to what its server is made of: the gateway's config, engines, and their plan."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from firelane.engine_config import EngineConfig
from firelane.env import Environment
from firelane.errors import FirelaneError, UsageError
from firelane.gateway.config import TRIALS, GatewayConfig, ModelConfig
from firelane.node.config import ModelEntry, NodeConfig, read_config
from firelane.node.toml_file import meant
from firelane.options import OptionSet, Values, fields, read_table
from firelane.server.engine_shares import EngineOptions
from firelane.server.model_spec import ModelSpec
from firelane.server.node_need import default_kv_bytes, gib, need_of
from firelane.server.node_plan import NodePlan
from firelane.server.options.engine import check_controller, engine_config, engine_options
from firelane.server.options.gateway import gateway_config
from firelane.server.options.sets import NODE_ENGINE, NODE_MODEL, NODE_SERVER
from firelane.sources.locate import ModelSource

NAME = "node"
"""The name of the directory of a node's files and batches."""


@dataclass(frozen=True, kw_only=True)
class NodeSetup:
    """gateway.models are those of `models`."""

    gateway: GatewayConfig
    plan: NodePlan
    models: tuple[ModelSpec, ...]

    def lines(self) -> list[str]:
        """Lines for people."""
        lines = [
            f"{', '.join((*model.gateway.names, *dict(model.gateway.aliases)))}: "
            f"{gib(model.policy.need_bytes) if model.is_here else 'absent, pulled when it is asked for'}"
            f"{', pinned' * model.policy.pinned}"
            for model in self.models
        ]
        total = sum(model.policy.need_bytes for model in self.models)
        return [*lines, f"together {gib(total)}, budget {gib(self.plan.policy.budget_bytes or 0)}"]

    def unknown_tenants(self) -> list[str]:
        """Lines for people: tenants of models that the key file lacks. Raises UsageError for that file."""
        from firelane.gateway.tenants.keyfile import read_key_file

        if self.gateway.api_keys is None:
            return []
        known = read_key_file(self.gateway.api_keys).tenants
        return [
            f"{model.name}: {self.gateway.api_keys} has no tenant {name!r} with a key{meant(name, known)}"
            for model in self.models
            for name in model.gateway.tenants or ()
            if name not in known
        ]


class NodeReader:
    """Reads a node's file, again and again. free_bytes: memory that can be had. Raises UsageError, with line
    and key, for all that is wrong with the file.
    """

    def __init__(
        self,
        path: Path,
        environment: Environment,
        free_bytes: Callable[[], int],
        given: Values | None = None,
    ) -> None:
        """given: values of the server's options that count in place of the file's."""
        self._path, self._environment, self._given = path, environment, given or {}
        self._free_bytes = free_bytes

    def read(self) -> NodeSetup:
        config = read_config(self._path, NODE_MODEL.by_key)
        config.file.check_keys(("server",), NODE_SERVER.by_key)
        config.file.check_keys(("engine",), NODE_ENGINE.by_key)
        server = {**_read(config, NODE_SERVER, ("server",), config.server), **self._given}
        _check_tenants(config, server)
        budget = config.policy.budget_bytes or self._default_budget
        specs: list[ModelSpec] = []

        def spec_of(entry: ModelEntry) -> ModelSpec:
            made = self._spec(config, entry, server, budget)
            return dataclasses.replace(made, when_here=functools.partial(when_here, entry))

        def when_here(entry: ModelEntry) -> ModelSpec:
            spec = spec_of(entry)
            others = [one for one in specs if one.name != entry.name]
            _check_fits(config, spec, [*others, spec], budget)
            return spec

        specs += map(spec_of, config.models)
        _check_budget(config, specs, budget)
        return NodeSetup(
            gateway=self._gateway(config, server, specs),
            plan=NodePlan(policy=dataclasses.replace(config.policy, budget_bytes=budget)),
            models=tuple(specs),
        )

    @functools.cached_property
    def _default_budget(self) -> int:
        """Bytes of the budget by default, from the memory that is free before there is any model."""
        return int(self._free_bytes() * BUDGET_SHARE)

    def _spec(self, config: NodeConfig, entry: ModelEntry, server: Values, budget: int) -> ModelSpec:
        chosen = self._with_draft(_options(config, entry, server))
        source = ModelSource(self._source(entry.source), self._environment.cache_dir)
        with _at_model(config, entry):
            directory = source.locate()
            engine = self._engine_of(directory, chosen)
        engines = _engines(config, entry, chosen, engine)
        need = None
        if directory is not None:
            with _at_model(config, entry):
                engine = default_kv_bytes(engines.engine, budget, engines.replicas)
                need = need_of(engine, engines.replicas)
            engines = dataclasses.replace(engines, engine=engine)
        gateway = ModelConfig(
            model_dir=directory,
            tokenizer_dir=engine.tokenizer_dir,
            names=(entry.name,),
            aliases=tuple((alias, entry.name) for alias in entry.aliases),
            adapters=tuple(name for name, _ in engine.loras),
            tenants=entry.tenants,
            trials_dir=self._environment.cache_dir / TRIALS,
            **fields(ModelConfig, chosen),
        )
        alike = {"models": len(config.models), "index": config.models.index(entry)}
        return ModelSpec(
            gateway=gateway,
            engines=dataclasses.replace(engines, **alike),
            policy=dataclasses.replace(entry.policy, need_bytes=0 if need is None else need.total),
            source=source,
            need=need,
        )

    def _engine_of(self, directory: Path | None, chosen: Values) -> EngineConfig:
        from firelane.text.tokens.tokenizer_source import tokenizer_directory

        cache_dir = self._environment.cache_dir
        tokenizer_dir = None if directory is None else tokenizer_directory(directory, cache_dir)
        return engine_config(chosen, directory or Path(), self._environment, tokenizer_dir)

    def _with_draft(self, chosen: dict[str, Any]) -> dict[str, Any]:
        """A draft model, or a head, lies where models do."""
        kind, _, name = chosen.get("speculative", "").partition("=")
        return chosen | {"speculative": f"{kind}={self._source(name)}"} if name else chosen

    def _source(self, source: str | None) -> str | None:
        """A directory of the file's own directory, too."""
        beside = None if source is None else self._path.parent / source
        return str(beside) if beside is not None and beside.exists() else source

    def _gateway(self, config: NodeConfig, server: Values, models: list[ModelSpec]) -> GatewayConfig:
        served = [model.gateway for model in models]
        try:
            return gateway_config(server, served, self._environment.cache_dir, NAME)
        except UsageError as error:
            raise config.file.error(("server",), str(error)) from error


OPTION = re.compile(r"--[a-z][a-z-]*")
BUDGET_SHARE = 0.8
"""The share of the memory that is free at the start, where the file names no budget."""


def _read(
    config: NodeConfig, options: OptionSet, at: tuple[str, ...], table: dict[str, Any]
) -> dict[str, Any]:
    """Values of options that the file's table at `at` has. Raises UsageError."""
    file = config.file
    return read_table(options, table, file.path.parent, lambda key, told: file.error((*at, key), told))


def _options(config: NodeConfig, entry: ModelEntry, server: Values) -> dict[str, Any]:
    """Options of one model's engines: its own, and those of all."""
    shared = _read(config, NODE_ENGINE, ("engine",), config.engine)
    values = {**shared, **_read(config, NODE_MODEL, ("models", entry.name), entry.options)}
    if values.get("weights_pages", "auto") == "auto":
        values["weights_pages"] = "file"  # others want the memory, and the page cache is all of theirs
    return {"log_format": server.get("log_format", "text"), **values}


def _engines(config: NodeConfig, entry: ModelEntry, chosen: Values, engine: EngineConfig) -> EngineOptions:
    """Number and roles of a model's engines. Raises UsageError at the key that it names first."""
    try:
        check_controller(chosen)
        return engine_options(chosen, engine)
    except UsageError as error:
        own, shared = ("models", entry.name), ("engine",)
        places = {key: (*shared, key) for key in config.engine}
        places |= {key: (*own, key) for key in entry.options}
        named = [key for key in map(key_of, OPTION.findall(str(error))) if key in places]
        at = places[named[0]] if named else own
        raise config.file.error(at, OPTION.sub(_as_key, str(error))) from error


def key_of(option: str) -> str:
    """The key of an option."""
    return option.removeprefix("--").replace("-", "_")


def _as_key(option: re.Match[str]) -> str:
    return key_of(option[0])


@contextlib.contextmanager
def _at_model(config: NodeConfig, entry: ModelEntry) -> Generator[None]:
    """An error, at the model's table."""
    try:
        yield
    except FirelaneError as error:
        raise config.file.error(("models", entry.name), str(error)) from error


def _check_tenants(config: NodeConfig, server: Values) -> None:
    """Raises UsageError for a model that nobody may use, as there are no keys."""
    for entry in config.models:
        if entry.tenants is not None and "api_keys" not in server:
            at = ("models", entry.name, "tenants")
            raise config.file.error(at, "without server.api_keys there are no tenants")


def _check_budget(config: NodeConfig, models: list[ModelSpec], budget: int) -> None:
    """Raises UsageError for a model that never fits."""
    for model in models:
        _check_fits(config, model, models, budget)
    first = sum(model.policy.need_bytes for model in models if model.policy.loads_first)
    if first > budget:
        raise config.file.error(
            ("models",),
            f"models that are pinned or loaded at the start need {gib(first)}, and the node has "
            f"{gib(budget)}",
        )


def _check_fits(config: NodeConfig, model: ModelSpec, models: list[ModelSpec], budget: int) -> None:
    """Raises UsageError for a model that does not fit beside those that are pinned."""
    beside = sum(one.policy.need_bytes for one in models if one.policy.pinned and one is not model)
    if model.policy.need_bytes + beside > budget:
        others = f", {gib(beside)} of it for pinned models" if beside else ""
        raise config.file.error(
            ("models", model.name),
            f"it needs {model.need}, and the node has {gib(budget)}{others}: raise "
            "node.budget_gib, lower kv_cache_gib or max_model_len, or take smaller weights",
        )
