"""Entries in memory, bounded, each tenant's apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from firelane.errors import NotFoundError
from firelane.gateway.tenants.tenant import Tenant


class StoredEntry(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def size_bytes(self) -> int: ...


EntryT = TypeVar("EntryT", bound=StoredEntry)


class _TenantEntries(Generic[EntryT]):
    """One tenant's entries, the least recently used first."""

    __slots__ = ("bytes_held", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[str, EntryT] = OrderedDict()
        self.bytes_held = 0

    def remove(self, entry_id: str) -> EntryT | None:
        entry = self.entries.pop(entry_id, None)
        if entry is not None:
            self.bytes_held -= entry.size_bytes
        return entry


_Key = tuple[str, bytes]


class TenantStore(Generic[EntryT]):
    """At most `max_entries` and `max_bytes`. When one more does not fit, the tenant that holds the
    most bytes loses its least recently used ones.
    not_found: makes the error for an id that is not here.
    """

    def __init__(self, max_entries: int, max_bytes: int, not_found: Callable[[str], NotFoundError]) -> None:
        self._not_found = not_found
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._by_tenant: dict[_Key, _TenantEntries[EntryT]] = {}
        self._entries = 0
        self._bytes = 0

    def __len__(self) -> int:
        return self._entries

    @property
    def enabled(self) -> bool:
        return self._max_entries > 0

    @property
    def bytes_held(self) -> int:
        return self._bytes

    def put(self, tenant: Tenant, entry: EntryT) -> None:
        """Keep it. One that is larger than the whole store is not kept."""
        if not self.enabled or entry.size_bytes > self._max_bytes:
            return
        self._remove(tenant.identity, entry.id)
        held = self._by_tenant.setdefault(tenant.identity, _TenantEntries[EntryT]())
        held.entries[entry.id] = entry
        held.bytes_held += entry.size_bytes
        self._entries += 1
        self._bytes += entry.size_bytes
        while self._entries > self._max_entries or self._bytes > self._max_bytes:
            key = max(self._by_tenant, key=lambda held: self._by_tenant[held].bytes_held)
            self._remove(key, next(iter(self._by_tenant[key].entries)))

    def get(self, tenant: Tenant, entry_id: str) -> EntryT:
        """Raises NotFoundError, for another tenant's too."""
        held = self._by_tenant.get(tenant.identity)
        entry = held.entries.get(entry_id) if held is not None else None
        if held is None or entry is None:
            raise self._not_found(entry_id)
        held.entries.move_to_end(entry_id)
        return entry

    def entries(self, tenant: Tenant) -> list[EntryT]:
        """All of a tenant's, the most recently used first."""
        held = self._by_tenant.get(tenant.identity)
        return [] if held is None else list(reversed(held.entries.values()))

    def delete(self, tenant: Tenant, entry_id: str) -> None:
        """Raises NotFoundError."""
        if not self._remove(tenant.identity, entry_id):
            raise self._not_found(entry_id)

    def _remove(self, key: _Key, entry_id: str) -> bool:
        held = self._by_tenant.get(key)
        entry = held.remove(entry_id) if held is not None else None
        if held is None or entry is None:
            return False
        self._entries -= 1
        self._bytes -= entry.size_bytes
        if not held.entries:
            del self._by_tenant[key]
        return True

    def check_integrity(self) -> None:
        """The counts are those of what is held. For tests."""
        entries = [e for held in self._by_tenant.values() for e in held.entries.values()]
        assert self._entries == len(entries) <= self._max_entries
        assert self._bytes == sum(e.size_bytes for e in entries) <= self._max_bytes
        assert all(
            held.entries and held.bytes_held == sum(e.size_bytes for e in held.entries.values())
            for held in self._by_tenant.values()
        )
