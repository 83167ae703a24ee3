"""Read-ahead: pages copied from the tiers into the KV cache while their prompt waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from firelane.kv.pool import WantedPage
from firelane.kv.tiers.places import CachedMemory
from firelane.kv.tiers.tier import PageTier, TierName

CLOSE_S = 10.0


class PageRead(NamedTuple):
    """The end of a read: nothing is written to its pages any more. sources: for each page, the tier that its
    content came from; None where it did not."""

    ticket: int
    sources: Sequence[TierName | None]
    seconds: float


class _ReadJob(NamedTuple):
    ticket: int
    wanted: Sequence[WantedPage]
    mine: Sequence[int]
    deadline_s: float


class TierReader:
    """Threads that copy pages, from the first tier that has them. Pages are tried in order until the
    deadline; one copy that hangs is not interrupted."""

    def __init__(self, tiers: Sequence[PageTier], memory: CachedMemory, threads: int) -> None:
        self._tiers, self._memory = tiers, memory
        self._jobs: SimpleQueue[_ReadJob | None] = SimpleQueue()
        self._ended: SimpleQueue[PageRead] = SimpleQueue()
        self._tickets = 0
        self._is_closing = False
        self._threads = [
            threading.Thread(target=self._run, name="kv-tier-reader", daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def read(self, wanted: Sequence[WantedPage], mine: Sequence[int], deadline_s: float) -> int:
        """Have the wanted pages, and parts of snapshots, copied into these pages and states of ours, which
        stay reserved until the ticket that is returned has ended. deadline_s: of time.monotonic()."""
        self._tickets += 1
        self._jobs.put(_ReadJob(self._tickets, wanted, mine, deadline_s))
        return self._tickets

    def poll(self) -> list[PageRead]:
        """Reads that have ended, each once."""
        found: list[PageRead] = []
        while True:
            try:
                found.append(self._ended.get_nowait())
            except Empty:
                return found

    def close(self) -> None:
        self._is_closing = True
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join(CLOSE_S)

    def _run(self) -> None:
        buffer = self._memory.buffer()
        while (job := self._jobs.get()) is not None:
            began_s = time.monotonic()
            sources: list[TierName | None] = [
                self._copy(w, m, buffer, job.deadline_s) for w, m in zip(job.wanted, job.mine, strict=True)
            ]
            self._ended.put(PageRead(job.ticket, sources, time.monotonic() - began_s))

    def _copy(
        self, wanted: WantedPage, mine: int, buffer: NDArray[np.uint8], deadline_s: float
    ) -> TierName | None:
        if self._is_closing or time.monotonic() >= deadline_s:
            return None
        room = self._memory.room(wanted.group, mine, buffer)
        for tier in self._tiers:
            if tier.contains(wanted.key) and tier.get(wanted.key, room):
                return tier.name if self._memory.write(wanted.group, mine, room) else None
        return None
