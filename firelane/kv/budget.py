"""Page counts of a plan in the making."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.kv.cache import KvCache
from firelane.kv.tables import BlockTables, PrefixHit


class PageBudget:
    """Free pages as they will be once what is planned so far has been applied. Changes nothing in the cache;
    valid until the cache changes."""

    def __init__(self, cache: KvCache) -> None:
        self._cache = cache
        self._free = cache.num_free
        self._set_aside = cache.num_free - cache.num_available
        self._users: dict[int, int] = {}
        """By page, how its number of users changes."""

    @property
    def available(self) -> int:
        """Free pages, less those set aside."""
        return self._free - self._set_aside

    def release(self, tables: BlockTables) -> None:
        """The sequence gives up all pages."""
        self._set_aside -= tables.set_aside
        for group in range(len(tables.tables)):
            held = tables.held(group)
            self._change_users(held, -1)
            self._free += sum(map(self._is_idle, held))

    def admit(self, num_tokens: int, hit: PrefixHit, headroom: int) -> bool:
        """Count an admission; False where fewer than `headroom` available pages would be left."""
        fresh, later = self._cache.num_to_admit(num_tokens, hit)
        idle = [page for pages in hit.pages for page in pages if self._is_idle(page)]
        if fresh + later + len(idle) + headroom > self.available:
            return False
        self._free -= fresh + len(idle)
        self._set_aside += later
        for pages in hit.pages:
            self._change_users(pages, 1)
        return True

    def cancel(self, num_tokens: int, hit: PrefixHit) -> None:
        """The opposite of `admit`."""
        fresh, later = self._cache.num_to_admit(num_tokens, hit)
        for pages in hit.pages:
            self._change_users(pages, -1)
        self._free += fresh + sum(self._is_idle(page) for pages in hit.pages for page in pages)
        self._set_aside -= later

    def take(self, pages: int, set_aside: int = 0) -> None:
        """Count pages that a sequence grows by, `set_aside` of which it may have from what is set aside."""
        self._free -= pages
        self._set_aside -= min(pages, set_aside)

    def set_aside(self, pages: int) -> None:
        """Keep more, or fewer, of the free pages from others."""
        self._set_aside += pages

    def give_back(self, pages: int) -> None:
        """Growth that is not going to happen."""
        self._free += pages

    def room(self, num_blocks: int, set_aside: int) -> int:
        """Tokens up to which a prefill can go that has pages for so many blocks."""
        pages = min(self._free, set_aside + max(0, self.available))
        return (num_blocks + pages // self._cache.num_limited) * self._cache.block_size

    def _change_users(self, pages: Iterable[int], change: int) -> None:
        for page in pages:
            self._users[page] = self._users.get(page, 0) + change

    def _is_idle(self, page: int) -> bool:
        return self._cache.num_users(page) + self._users.get(page, 0) == 0
