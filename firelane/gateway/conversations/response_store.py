"""Answers that can be read again and continued: in memory, bounded, each tenant's apart."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from firelane.errors import NotFoundError
from firelane.gateway.conversations.tenant_store import TenantStore
from firelane.gateway.tenants.tenant import Tenant

MAX_BYTES = 256 << 20
ENTRY_BYTES = 512
"""Bytes that an entry takes besides its JSON, about."""
HEAD_BYTES = 256
"""Bytes at the beginning of an item that have its type and its id."""
_ID = re.compile(rb'"id":"([^"\\]*)"')


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


class ResponseStore(TenantStore[StoredResponse]):
    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_entries, max_bytes, _not_found)

    def find_items(self, tenant: Tenant, wanted: Collection[str]) -> dict[str, bytes]:
        """JSON of items by their ids, as far as they are in some answer or in what it was made from."""
        held = self.entries(tenant)
        outputs = (item for entry in held for item in entry.outputs)
        found = _with_ids(outputs, wanted)
        missing = set(wanted) - set(found)
        if missing:  # items of turns before are in each entry after them
            inputs = {id(item): item for entry in held for item in entry.inputs}
            found |= _with_ids(inputs.values(), missing)
        return found


def _with_ids(items: Iterable[bytes], wanted: Collection[str]) -> dict[str, bytes]:
    """The items that have a wanted id."""
    found: dict[str, bytes] = {}
    for item in items:
        head = _ID.search(item, 0, HEAD_BYTES)
        item_id = head[1].decode() if head is not None else ""
        if item_id in wanted:
            found.setdefault(item_id, item)
    return found


def _not_found(response_id: str) -> NotFoundError:
    return NotFoundError(
        f"no response '{response_id[:80]}' is stored here: it was made with `store: false`, deleted, pushed "
        "out by newer ones, or belongs to another key; send the whole conversation instead",
        param="previous_response_id",
        code="response_not_found",
    )
