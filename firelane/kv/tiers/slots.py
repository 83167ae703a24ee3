"""Equal slots of a tier: which page lies in which, and whose it is.

    free -- reserve --> held, being written -- publish --> findable, given out again by `SegmentedLru`
     ^                     |                                  |
     +------ cancel -------+------- discard, forget ----------+

Calls may come from any thread. Readers copy without a lock: a slot has a generation, which changes before its
content does, and is compared afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import NamedTuple

from firelane.kv.tiers.eviction import SegmentedLru

PageKey = tuple[int, bytes]
"""Cache group and name of a page."""
NO_SLOT = -1


class SlotOwner(NamedTuple):
    """The page in a slot. tenant: as in WantedPage."""

    key: PageKey
    tenant: bytes


class SlotIndex:
    def __init__(self, num_slots: int, tenant_slots: int | None = None) -> None:
        """tenant_slots: the most that one tenant may have; None: all."""
        self.num_slots = num_slots
        self._tenant_slots = num_slots if tenant_slots is None else max(1, min(num_slots, tenant_slots))
        self._lock = threading.RLock()
        self._by_key: dict[PageKey, int] = {}
        self._owners: list[SlotOwner | None] = [None] * num_slots
        self._generations = [0] * num_slots
        self._free = list(range(num_slots - 1, -1, -1))
        self._held: set[int] = set()
        self._order = SegmentedLru(num_slots)
        self._of_tenant: dict[bytes, SegmentedLru] = {}
        self.evictions = 0
        """Pages that made room for others, which only grows."""

    def restore(self, pages: Iterable[tuple[int, PageKey, bytes]]) -> None:
        """Have these pages (slot, page, tenant) in an index that is empty, the least recently used first. Of
        a page that is in two slots the later one counts."""
        found = {key: (slot, tenant) for slot, key, tenant in pages}
        with self._lock:
            taken = {slot for slot, _ in found.values()}
            self._free = [slot for slot in self._free if slot not in taken]
            self._held |= taken
            for key, (slot, tenant) in found.items():
                self.publish(slot, key, tenant)
                own = self._of_tenant[tenant]
                while len(own) > self._tenant_slots:
                    self._free.append(self._evict(own.first()))

    def __len__(self) -> int:
        return len(self._by_key)

    def __contains__(self, key: PageKey) -> bool:
        return key in self._by_key

    def owner(self, slot: int) -> SlotOwner | None:
        return self._owners[slot]

    def find(self, key: PageKey) -> tuple[int, int]:
        """The slot of this page and its generation, or NO_SLOT."""
        with self._lock:
            slot = self._by_key.get(key, NO_SLOT)
            return slot, self._generations[slot] if slot >= 0 else 0

    def is_current(self, slot: int, generation: int) -> bool:
        """The content of the slot is the one that it was found with."""
        return self._generations[slot] == generation

    def touch(self, key: PageKey) -> None:
        """This page, if it is there, was asked for again."""
        with self._lock:
            slot = self._by_key.get(key, NO_SLOT)
            owner = self._owners[slot]
            if slot >= 0 and owner is not None:
                self._order.touch(slot)
                self._of_tenant[owner.tenant].touch(slot)

    def reserve(self, tenant: bytes) -> int:
        """A slot for a page of this tenant, its old content forgotten: one of the tenant's own where it has
        as many as it may. NO_SLOT where all are being written."""
        with self._lock:
            own = self._of_tenant.get(tenant)
            if own is not None and len(own) >= self._tenant_slots:
                slot = self._evict(own.first())
            elif self._free:
                slot = self._free.pop()
            elif len(self._order):
                slot = self._evict(self._order.first())
            else:
                return NO_SLOT
            self._held.add(slot)
            self._generations[slot] += 1
            return slot

    def publish(self, slot: int, key: PageKey, tenant: bytes) -> None:
        """A reserved slot has its content. A second one of the same page is free again."""
        with self._lock:
            if key in self._by_key:
                self.cancel(slot)
                return
            self._held.remove(slot)
            self._by_key[key], self._owners[slot] = slot, SlotOwner(key, tenant)
            self._order.add(slot)
            own = self._of_tenant.get(tenant)
            if own is None:
                own = self._of_tenant[tenant] = SegmentedLru(self._tenant_slots)
            own.add(slot)

    def cancel(self, slot: int) -> None:
        """A reserved slot gets no content."""
        with self._lock:
            self._held.remove(slot)
            self._free.append(slot)

    def discard(self, key: PageKey) -> int:
        """Forget this page, whose slot is returned, or NO_SLOT."""
        with self._lock:
            slot = self._by_key.get(key, NO_SLOT)
            if slot >= 0:
                self._generations[slot] += 1
                self._remove(slot)
                self._free.append(slot)
            return slot

    def slots_of(self, tenant: bytes) -> list[int]:
        with self._lock:
            return list(self._of_tenant.get(tenant, ()))

    def clear(self) -> None:
        """Forget all pages."""
        with self._lock:
            for key in list(self._by_key):
                self.discard(key)

    def check_integrity(self) -> None:
        """Raise AssertionError unless each slot is in one place and all indices agree."""
        free, named = set(self._free), set(self._by_key.values())
        assert len(free) == len(self._free), "a slot is free twice"
        assert sorted([*free, *self._held, *named]) == list(range(self.num_slots)), "a slot is lost or twice"
        assert set(self._order) == named == {s for own in self._of_tenant.values() for s in own}
        for slot, owner in enumerate(self._owners):
            assert (owner is not None) == (slot in named), f"slot {slot}: owner and index differ"
            assert owner is None or self._by_key[owner.key] == slot
            assert owner is None or slot in self._of_tenant[owner.tenant]
        for tenant, own in self._of_tenant.items():
            assert 0 < len(own) <= self._tenant_slots, f"{tenant.hex()} has {len(own)} slots"

    def _evict(self, slot: int) -> int:
        self._remove(slot)
        self.evictions += 1
        return slot

    def _remove(self, slot: int) -> None:
        owner = self._owners[slot]
        assert owner is not None
        del self._by_key[owner.key]
        self._owners[slot] = None
        self._order.remove(slot)
        own = self._of_tenant[owner.tenant]
        own.remove(slot)
        if not len(own):
            del self._of_tenant[owner.tenant]
