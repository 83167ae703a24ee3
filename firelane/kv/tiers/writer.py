"""Write-behind: pages of the KV cache, and snapshots, copied into a tier when they are complete, by a thread
of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

from firelane.kv.cache import KvCache
from firelane.kv.pool import NamedPage
from firelane.kv.tiers.admission import TierAdmission
from firelane.kv.tiers.places import CachedMemory
from firelane.kv.tiers.slots import PageKey
from firelane.kv.tiers.tier import PageTier

CLOSE_S = 10.0
"""For what is left to be written at the end."""


REFRESH_S = 2.0


class PagesToStore(NamedTuple):
    """Pages to store, where they still are what they were, and snapshots, whose group is STATES. is_reused:
    as in TierAdmission."""

    pages: Sequence[tuple[int, NamedPage]]
    is_reused: bool


NOTHING = PagesToStore((), is_reused=False)


class TierWriter:
    """The one that changes `tier`. A page is copied first and compared with its tag afterwards: where it was
    given out again meanwhile, the copy is dropped."""

    def __init__(
        self, tier: PageTier, admission: TierAdmission, memory: CachedMemory, names: KvCache
    ) -> None:
        self._tier, self._admission, self._memory, self._names = tier, admission, memory, names
        self._most_pending = 4 * memory.num_pages
        self._buffer = memory.buffer()
        self._queue: SimpleQueue[PagesToStore | Callable[[], None] | None] = SimpleQueue()
        self._is_hurried = False
        self._left, self._left_guard = 0, threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"kv-{tier.name}-writer", daemon=True)
        self._thread.start()

    @property
    def is_behind(self) -> bool:
        """Something that was asked for is still to be done."""
        return self._left > 0

    def store(self, stored: PagesToStore) -> None:
        """Later; not at all where the tier is far behind."""
        if self._left < self._most_pending:
            self._put(stored)

    def later(self, function: Callable[[], None]) -> None:
        """Have the thread call this, after what came before."""
        self._put(function)

    def call(self, function: Callable[[], None]) -> None:
        """Have the thread call this, after what came before; returns then."""
        done = threading.Event()
        self.later(function)
        self.later(done.set)
        while not done.wait(0.1) and self._thread.is_alive():
            pass

    def close(self) -> None:
        """Write what is left, as far as the time allows."""
        self._queue.put(None)
        self._thread.join(CLOSE_S)
        self._is_hurried = True
        self._thread.join(CLOSE_S)

    def _put(self, item: PagesToStore | Callable[[], None]) -> None:
        with self._left_guard:
            self._left += 1
        self._queue.put(item)

    def _run(self) -> None:
        refresh_s = time.monotonic()
        while (item := self._next()) is not None:
            if time.monotonic() >= refresh_s:
                self._tier.refresh()
                refresh_s = time.monotonic() + REFRESH_S
            if item is NOTHING:
                continue
            self._do(item)
            with self._left_guard:
                self._left -= 1

    def _next(self) -> PagesToStore | Callable[[], None] | None:
        try:
            return self._queue.get(timeout=REFRESH_S)
        except Empty:
            return NOTHING

    def _do(self, item: PagesToStore | Callable[[], None]) -> None:
        if not isinstance(item, PagesToStore):
            item()
            return
        for page, named in item.pages:
            for part in self._memory.parts(named):
                if not self._is_hurried:
                    self._store(page, named, part.key, is_reused=item.is_reused)

    def _store(self, page: int, named: NamedPage, key: PageKey, *, is_reused: bool) -> None:
        """key: in the tier."""
        if is_reused:
            self._tier.touch(key)
        is_admitted = self._admission.admits(key, is_reused=is_reused)
        if not is_admitted or self._tier.contains(key):
            return
        there = self._names.locate(*named.key)
        if there[0] != page:
            return
        source = self._memory.read(key[0], page, self._buffer)
        if source is not None:
            self._tier.put(key, named.tenant, source, lambda: self._names.locate(*named.key) == there)
