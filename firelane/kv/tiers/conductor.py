"""The tiers of one KV cache together: written behind it, and read ahead of prompts. Behaviour belongs in what
it calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from firelane.kv.cache import KvCache
from firelane.kv.pool import STATES, NamedPage, PageWatcher, WantedPage
from firelane.kv.tiers.admission import TierAdmission
from firelane.kv.tiers.places import CachedMemory
from firelane.kv.tiers.reader import PageRead, TierReader
from firelane.kv.tiers.slots import PageKey
from firelane.kv.tiers.tier import PageTier, TierName, TierStats
from firelane.kv.tiers.writer import PagesToStore, TierWriter

READERS = 4
"""Threads: one copy at a time does not use all that a drive has."""


class TieredPages(PageWatcher):
    """Owns `tiers`, the fastest first, and the threads that copy. Called by the engine's loop alone."""

    def __init__(
        self,
        tiers: Sequence[PageTier],
        memory: CachedMemory,
        kv: KvCache,
        admission: Callable[[], TierAdmission],
    ) -> None:
        """admission: makes one for each tier. From now on complete pages of `kv`, and its snapshots, are
        stored."""
        self._tiers, self._kv, self._memory = tuple(tiers), kv, memory
        self._writers = [TierWriter(tier, admission(), memory, kv) for tier in tiers]
        self._reader = TierReader(self._tiers, memory, READERS)
        kv.watch(self)

    def published(self, page: int, named: NamedPage) -> None:
        """Store a published page, as a PageWatcher."""
        for writer in self._writers:
            writer.store(PagesToStore(((page, named),), is_reused=False))

    def shared(self, pages: list[tuple[int, NamedPage]]) -> None:
        """Store pages that are used again, as a PageWatcher."""
        for writer in self._writers:
            writer.store(PagesToStore(pages, is_reused=True))

    @property
    def page_bytes(self) -> int:
        return self._memory.page_bytes

    def holds(self, key: PageKey) -> bool:
        """Some tier had the page a moment ago; of the group STATES: the whole snapshot."""
        if key[0] == STATES:
            return all(self.holds((group, key[1])) for group in self._memory.part_groups)
        return any(tier.contains(key) for tier in self._tiers)

    def parts(self, named: WantedPage) -> list[WantedPage]:
        """The parts of a wanted page, as CachedMemory tells them."""
        return self._memory.parts(named)

    def read(self, wanted: Sequence[WantedPage], mine: Sequence[int], deadline_s: float) -> int:
        """Begin to read pages, as TierReader does."""
        return self._reader.read(wanted, mine, deadline_s)

    def poll(self) -> list[PageRead]:
        """Pages that were read since the last call, as TierReader tells them."""
        return self._reader.poll()

    def stats(self) -> dict[TierName, TierStats]:
        return {tier.name: tier.stats() for tier in self._tiers}

    @property
    def is_behind(self) -> bool:
        """Pages are still to be stored, or erased."""
        return any(writer.is_behind for writer in self._writers)

    def settle(self) -> None:
        """Return when all pages that were complete before are stored, or passed over."""
        for writer in self._writers:
            writer.call(lambda: None)

    def forget(self, tenant: bytes, done: Callable[[int], None]) -> None:
        """Erase all pages of a tenant; then call `done`, from a thread, with the number of copies."""
        self._forget(list(zip(self._tiers, self._writers, strict=True)), tenant, 0, done)

    def standby(self) -> None:
        """Have all tiers give their memory back, as PageTier.standby does."""
        for tier, writer in zip(self._tiers, self._writers, strict=True):
            writer.call(tier.standby)

    def _forget(
        self, left: list[tuple[PageTier, TierWriter]], tenant: bytes, erased: int, done: Callable[[int], None]
    ) -> None:
        """In one tier after the other."""
        if not left:
            done(erased)
            return
        (tier, writer), *others = left
        writer.later(lambda: self._forget(others, tenant, erased + tier.forget(tenant), done))

    def close(self) -> None:
        """Write what is left, and end the threads; idempotent."""
        writers, self._writers = self._writers, []
        if writers:
            self._reader.close()
        for tier, writer in zip(self._tiers, writers, strict=False):
            writer.close()
            tier.close()
