"""The models that a server is asked to serve: one description of each, made of options or a node's file."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.node.policy import ModelPolicy
from firelane.server.engine_shares import EngineOptions

if TYPE_CHECKING:
    from pathlib import Path

    from firelane.engine_config import EngineConfig
    from firelane.server.node_need import Need
    from firelane.sources.locate import ModelSource


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One model as it was asked for: on the command line, or in a node's file."""

    gateway: ModelConfig
    """Its names, who may use it, how its text is read and written, how requests find an engine."""
    engines: EngineOptions
    """The processes that compute for it."""
    policy: ModelPolicy
    """The time when it is in memory."""
    source: ModelSource | None = None
    """The place that the files of a node's model come from; None for others, which are always here."""
    need: Need | None = field(default=None, compare=False)
    """The memory of a node's model, part by part; None while its files are not here."""
    when_here: Callable[[], ModelSpec] | None = field(default=None, compare=False)
    """Gives what it is once its files have come. Raises UsageError."""

    @property
    def name(self) -> str:
        return self.gateway.names[0]

    @property
    def is_here(self) -> bool:
        """Whether it was made of the model's files; else nothing but names and policy is known."""
        return self.gateway.model_dir is not None

    def engines_differ(self, other: ModelSpec) -> bool:
        """Whether its engines have to be started anew. How many other models there are is no reason."""
        return self._engine_parts != other._engine_parts

    @property
    def _engine_parts(self) -> tuple[object, ...]:
        gateway = self.gateway
        alone = dataclasses.replace(self.engines, models=1, index=0)
        return alone, gateway.routing, gateway.shares_pages, gateway.recovery

    def difference(self, after: ModelSpec) -> str:
        """Changes of a reload, as words for the log."""
        parts = [differing(self.policy, after.policy), differing(self.gateway, after.gateway)]
        if after.source != self.source and after.source is not None:
            parts.append(f"source={after.source.text}")
        if after.engines_differ(self):
            parts.append(f"{differing(self.engines.engine, after.engines.engine)} engines=restart".strip())
        return " ".join(part for part in parts if part)

    @property
    def has_lone_engine(self) -> bool:
        """Whether it has one process of this server, which knows of no other engine."""
        own = self.engines
        is_connected = self.gateway.shares_pages or own.remote_peers is not None
        return own.replicas == 1 and own.remote is None and not is_connected

    def with_weights(self, model_dir: Path, tokenizer_dir: Path, version: str) -> ModelSpec:
        """The same model with other files. version: the name of these."""
        own = {"model_dir": model_dir, "tokenizer_dir": tokenizer_dir, "version": version}
        engine = msgspec.structs.replace(self.engines.engine, **own)
        return dataclasses.replace(
            self,
            gateway=dataclasses.replace(self.gateway, **own),
            engines=dataclasses.replace(self.engines, engine=engine),
        )

    def engine_configs(self) -> list[EngineConfig]:
        """The configuration of each engine."""
        return self.engines.configs(shares_pages=self.gateway.shares_pages)


def fixed_models(config: GatewayConfig, engines: Sequence[EngineOptions]) -> list[ModelSpec]:
    """Models that are in memory from the start to the end."""
    pairs = zip(config.models, engines, strict=True)
    return [ModelSpec(gateway=own, engines=one, policy=ModelPolicy(pinned=True)) for own, one in pairs]


def lone_model(engines: EngineOptions) -> ModelSpec:
    """A model that a gateway elsewhere serves, and which is here for that alone."""
    directory = engines.engine.model_dir
    config = ModelConfig(model_dir=directory, names=(directory.name,))
    return ModelSpec(gateway=config, engines=engines, policy=ModelPolicy(pinned=True))


def differing(before: Any, after: Any) -> str:
    """Fields that differ, of two dataclasses or structs, as words."""
    names = getattr(after, "__struct_fields__", None) or vars(after)
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return " ".join(f"{name}={old}->{new}" for name, old, new in pairs if old != new)
