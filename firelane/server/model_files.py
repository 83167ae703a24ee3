"""Files of one model of a node: its source, and what the node does when they have come."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from firelane.errors import CacheError
from firelane.sources.fetch import fetch
from firelane.storage import cache_directory

if TYPE_CHECKING:
    from firelane.node.model import OnProgress
    from firelane.server.engine_shares import EngineOptions
    from firelane.server.model_spec import ModelSpec

DIRECTORY = "packed"


class SourceFiles:
    """ModelFiles of a model from its source. spec: of the model, as it is now; its own is_here says whether
    it was made of files that are here."""

    def __init__(
        self,
        spec: Callable[[], ModelSpec],
        arrive: Callable[[], Awaitable[None]],
        is_used: Callable[[], str],
    ) -> None:
        """arrive: to be done when they have come. is_used: the name of another model that has them in memory,
        "" of none."""
        self._spec, self._arrive, self._is_used = spec, arrive, is_used
        self._are_there = spec().is_here

    @property
    def are_here(self) -> bool:
        return self._are_there and self._spec().is_here

    def look(self) -> None:
        """Once they were here they may have gone; when they come, they are pulled."""
        source = self._spec().source
        self._are_there = source is None or not source.is_pulled or source.is_there()

    async def pull(self, on_progress: OnProgress, *, whole: bool) -> None:
        source = self._spec().source
        if source is None or not source.is_pulled or source.text is None:
            return
        await fetch(source.text, source.cache_dir, on_progress, whole=whole)
        await self._arrive()
        self.look()

    async def remove(self) -> int:
        spec = self._spec()
        if spec.source is None:
            return 0
        if other := self._is_used():
            raise CacheError(f"{spec.name}: its files are those of {other}, which is in memory: unload that")
        freed = await asyncio.to_thread(spec.source.remove)
        PackedFile(spec.engines).clear()
        self.look()
        return freed


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
