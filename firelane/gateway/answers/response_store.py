"""Answers that can be read again and continued: in memory, bounded, each tenant's apart."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from firelane.errors import NotFoundError
from firelane.gateway.tenants.tenant import Tenant

MAX_BYTES = 256 << 20
ENTRY_BYTES = 512
"""Bytes that an entry takes besides its JSON, about."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """body: JSON of the answer. inputs: JSON of each item that it was made from, the turns before included.
    outputs: of each item that it gave. Turns share the items of the turns before them.
    """

    id: str
    body: bytes
    inputs: tuple[bytes, ...]
    outputs: tuple[bytes, ...]

    @property
    def size_bytes(self) -> int:
        """An upper bound: shared items count in each turn."""
        return ENTRY_BYTES + len(self.body) + sum(map(len, self.inputs)) + sum(map(len, self.outputs))


class _TenantResponses:
    """One tenant's answers, the least recently used first."""

    __slots__ = ("bytes_held", "entries")

    def __init__(self) -> None:
        self.entries: OrderedDict[str, StoredResponse] = OrderedDict()
        self.bytes_held = 0

    def remove(self, response_id: str) -> StoredResponse | None:
        entry = self.entries.pop(response_id, None)
        if entry is not None:
            self.bytes_held -= entry.size_bytes
        return entry


_Key = tuple[str, bytes]


class ResponseStore:
    """At most `max_entries` answers and `max_bytes`. When one more does not fit, the tenant that holds the
    most bytes loses its least recently used ones.
    """

    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._by_tenant: dict[_Key, _TenantResponses] = {}
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

    def put(self, tenant: Tenant, entry: StoredResponse) -> None:
        """Keep it. One that is larger than the whole store is not kept."""
        if not self.enabled or entry.size_bytes > self._max_bytes:
            return
        self._remove(_key(tenant), entry.id)
        held = self._by_tenant.setdefault(_key(tenant), _TenantResponses())
        held.entries[entry.id] = entry
        held.bytes_held += entry.size_bytes
        self._entries += 1
        self._bytes += entry.size_bytes
        while self._entries > self._max_entries or self._bytes > self._max_bytes:
            key = max(self._by_tenant, key=lambda held: self._by_tenant[held].bytes_held)
            self._remove(key, next(iter(self._by_tenant[key].entries)))

    def get(self, tenant: Tenant, response_id: str) -> StoredResponse:
        """Raises NotFoundError, for another tenant's too."""
        held = self._by_tenant.get(_key(tenant))
        entry = held.entries.get(response_id) if held is not None else None
        if held is None or entry is None:
            raise _not_found(response_id)
        held.entries.move_to_end(response_id)
        return entry

    def delete(self, tenant: Tenant, response_id: str) -> None:
        """Raises NotFoundError."""
        if not self._remove(_key(tenant), response_id):
            raise _not_found(response_id)

    def _remove(self, key: _Key, response_id: str) -> bool:
        held = self._by_tenant.get(key)
        entry = held.remove(response_id) if held is not None else None
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


def _key(tenant: Tenant) -> _Key:
    # On an open server all names are "": keys tell its clients apart, as they do in the prefix cache.
    return tenant.name, tenant.salt


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"no response '{response_id[:80]}' is stored here: it was made with `store: false`, deleted, pushed "
        "out by newer ones, or belongs to another key; send the whole conversation instead",
        param="previous_response_id",
        code="response_not_found",
    )
