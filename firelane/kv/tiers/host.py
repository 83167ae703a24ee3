"""The tier in host memory."""

from __future__ import annotations

import contextlib
import mmap
import sys
from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from firelane.kv.tiers.slots import NO_SLOT, PageKey, SlotIndex
from firelane.kv.tiers.tier import TierStats


class HostTier:
    """A PageTier in memory of the host. Pages lie in memory that is taken when it is first written, huge
    pages where the system grants them: to take small ones costs more time than the copies."""

    name: Literal["host"] = "host"

    def __init__(self, num_slots: int, page_bytes: int, tenant_slots: int | None = None) -> None:
        """tenant_slots: as in SlotIndex."""
        self.index = SlotIndex(num_slots, tenant_slots)
        self._memory = mmap.mmap(-1, num_slots * page_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._memory.madvise(mmap.MADV_HUGEPAGE)
        self._pages = np.frombuffer(self._memory, np.uint8).reshape(num_slots, page_bytes)
        self._read = self._written = 0

    def contains(self, key: PageKey) -> bool:
        return key in self.index

    def touch(self, key: PageKey) -> None:
        self.index.touch(key)

    def put(self, key: PageKey, tenant: bytes, page: NDArray[np.uint8], is_true: Callable[[], bool]) -> None:
        slot = self.index.reserve(tenant)
        if slot == NO_SLOT:
            return
        np.copyto(self._pages[slot, : page.size], page)
        if is_true():
            self.index.publish(slot, key, tenant)
            self._written += 1
        else:
            self.index.cancel(slot)

    def get(self, key: PageKey, into: NDArray[np.uint8]) -> bool:
        slot, generation = self.index.find(key)
        if slot == NO_SLOT:
            return False
        np.copyto(into, self._pages[slot, : into.size])
        if not self.index.is_current(slot, generation):
            return False
        self.index.touch(key)
        self._read += 1
        return True

    def forget(self, tenant: bytes) -> int:
        slots = self.index.slots_of(tenant)
        for slot in slots:
            owner = self.index.owner(slot)
            if owner is not None:
                self.index.discard(owner.key)
                self._pages[slot] = 0
        return len(slots)

    def standby(self) -> None:
        self.index.clear()
        self._memory.madvise(mmap.MADV_DONTNEED)

    def refresh(self) -> None:
        """Nobody else stores here."""

    def stats(self) -> TierStats:
        return TierStats(len(self.index), self._read, self._written, self.index.evictions)

    def close(self) -> None:
        self.index.clear()
