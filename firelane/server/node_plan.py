"""Plan of a node: what its models may take, and when. A server of fixed models is the simplest one."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from firelane.errors import CacheError
from firelane.gateway.config import GatewayConfig, ModelConfig
from firelane.node.memory_groups import NO_GROUPS, MemoryGroups
from firelane.node.policy import ModelPolicy, NodePolicy
from firelane.server.engine_shares import EngineOptions
from firelane.storage import cache_directory

if TYPE_CHECKING:
    from firelane.sources.locate import ModelSource

DIRECTORY = "packed"


@dataclass(frozen=True, kw_only=True)
class ModelSetup:
    """One model: as the gateway knows it, its engines, and when it is in memory. source: of a model of a
    node; None of others, which are always here. when_here: what it is when its files have come; raises
    UsageError.
    """

    gateway: ModelConfig
    engines: EngineOptions
    policy: ModelPolicy
    source: ModelSource | None = None
    when_here: Callable[[], ModelSetup] | None = field(default=None, compare=False)

    @property
    def name(self) -> str:
        return self.gateway.names[0]

    @property
    def is_here(self) -> bool:
        """Whether it was made of the model's files; else nothing but names and policy is known."""
        return self.gateway.model_dir is not None

    def engines_differ(self, other: ModelSetup) -> bool:
        """Whether its engines have to be started anew. How many other models there are is no reason."""
        return _alone(self.engines) != _alone(other.engines)

    def difference(self, after: ModelSetup) -> str:
        """Changes of a reload, as words for the log."""
        parts = [differing(self.policy, after.policy), differing(self.gateway, after.gateway)]
        if after.source != self.source and after.source is not None:
            parts.append(f"source={after.source.text}")
        if after.engines_differ(self):
            parts.append(f"{differing(self.engines.engine, after.engines.engine)} engines=restart".strip())
        return " ".join(part for part in parts if part)


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """is_fixed: all models are loaded at the start, and one that does not start ends the server.
    groups: of its engines."""

    policy: NodePolicy = field(default_factory=NodePolicy)
    is_fixed: bool = False
    groups: MemoryGroups = NO_GROUPS


FIXED = NodePlan(is_fixed=True)
"""The plan of a server that no file describes."""


def fixed_models(config: GatewayConfig, engines: Sequence[EngineOptions]) -> list[ModelSetup]:
    """Models that are in memory from the start to the end."""
    pairs = zip(config.models, engines, strict=True)
    return [ModelSetup(gateway=own, engines=one, policy=ModelPolicy(pinned=True)) for own, one in pairs]


def differing(before: Any, after: Any) -> str:
    """Fields that differ, of two dataclasses or structs, as words."""
    names = getattr(after, "__struct_fields__", None) or vars(after)
    pairs = ((name, getattr(before, name), getattr(after, name)) for name in names)
    return " ".join(f"{name}={old}->{new}" for name, old, new in pairs if old != new)


def _alone(options: EngineOptions) -> EngineOptions:
    return dataclasses.replace(options, models=1, index=0)


class PackedFile:
    """An empty file in the cache directory, which says that a model was loaded with these options before.
    Without it, or where the cache was emptied, the next load packs and compiles again: nothing depends on it.
    """

    def __init__(self, options: EngineOptions) -> None:
        engine = msgspec.structs.replace(options.engine, cores=None, threads=None, kv_cache_bytes=None)
        digest = hashlib.blake2b(engine.to_json().encode(), digest_size=16).hexdigest()
        self._cache_dir, self._name = engine.cache_dir, digest

    @property
    def is_set(self) -> bool:
        return self._path.exists()

    def set(self) -> None:
        try:
            cache_directory(self._cache_dir / DIRECTORY)
            self._path.touch()
        except (OSError, CacheError):
            return

    def clear(self) -> None:
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)

    @property
    def _path(self) -> Path:
        return self._cache_dir / DIRECTORY / self._name
