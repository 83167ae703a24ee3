"""Plan of a node: what its models may take, and when. A server of fixed models is the simplest one."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from firelane.cli.engine_shares import EngineOptions
from firelane.errors import CacheError
from firelane.node.policy import ModelPolicy, NodePolicy
from firelane.storage import cache_directory

DIRECTORY = "packed"


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """models: in the order of the gateway's. is_fixed: all are loaded at the start, and a model that does not
    start ends the server.
    """

    policy: NodePolicy
    models: tuple[ModelPolicy, ...]
    is_fixed: bool = False

    @classmethod
    def of_server(cls, models: int) -> NodePlan:
        return cls(policy=NodePolicy(), models=(ModelPolicy(pinned=True),) * models, is_fixed=True)

    def mark(self, options: EngineOptions) -> PackedFile:
        return PackedFile(options)


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

    @property
    def _path(self) -> Path:
        return self._cache_dir / DIRECTORY / self._name
