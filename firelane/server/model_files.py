"""Files of one model of a node: its source, and what the node does when they have come."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from firelane.errors import CacheError
from firelane.server.node_plan import PackedFile
from firelane.sources.fetch import fetch

if TYPE_CHECKING:
    from firelane.node.model import OnProgress
    from firelane.server.node_plan import ModelSetup


class SourceFiles:
    """ModelFiles of a model from its source. setup: of the model, as it is now; its own is_here says whether
    it was made of files that are here."""

    def __init__(
        self,
        setup: Callable[[], ModelSetup],
        arrive: Callable[[], Awaitable[None]],
        is_used: Callable[[], str],
    ) -> None:
        """arrive: to be done when they have come. is_used: the name of another model that has them in memory,
        "" of none."""
        self._setup, self._arrive, self._is_used = setup, arrive, is_used
        self._are_there = setup().is_here

    @property
    def are_here(self) -> bool:
        return self._are_there and self._setup().is_here

    def look(self) -> None:
        """Once they were here they may have gone; when they come, they are pulled."""
        source = self._setup().source
        self._are_there = source is None or not source.is_pulled or source.is_there()

    async def pull(self, on_progress: OnProgress, *, whole: bool) -> None:
        source = self._setup().source
        if source is None or not source.is_pulled or source.text is None:
            return
        await fetch(source.text, source.cache_dir, on_progress, whole=whole)
        await self._arrive()
        self.look()

    async def remove(self) -> int:
        setup = self._setup()
        if setup.source is None:
            return 0
        if other := self._is_used():
            raise CacheError(f"{setup.name}: its files are those of {other}, which is in memory: unload that")
        freed = await asyncio.to_thread(setup.source.remove)
        PackedFile(setup.engines).clear()
        self.look()
        return freed
