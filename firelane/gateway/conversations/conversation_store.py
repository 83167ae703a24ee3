"""Conversations that requests read and add to: in memory, bounded, each tenant's apart."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from firelane.api.stored.conversations import ConversationObject
from firelane.errors import NotFoundError, RequestError
from firelane.gateway.conversations.tenant_store import TenantStore
from firelane.gateway.tenants.tenant import Tenant

MAX_BYTES = 64 << 20
MAX_ITEMS = 4096
"""Items of one conversation, at most."""
MAX_ITEM_BYTES = 8 << 20
"""Bytes of all items of one conversation, at most."""
ENTRY_BYTES = 4096
"""Bytes that an entry takes besides its items, about; metadata included."""
_REFERENCE = b'{"type":"item_reference"'


@dataclass(frozen=True, slots=True)
class StoredItem:
    id: str
    json: bytes


@dataclass(frozen=True, slots=True)
class StoredConversation:
    """Replaced as a whole by each change; what is unchanged is shared."""

    about: ConversationObject
    items: tuple[StoredItem, ...]

    @property
    def id(self) -> str:
        return self.about.id

    @property
    def size_bytes(self) -> int:
        texts = sum(len(key) + len(value) for key, value in self.about.metadata.items())
        return ENTRY_BYTES + 4 * texts + sum(ENTRY_BYTES // 16 + len(item.json) for item in self.items)

    def find(self, item_id: str) -> StoredItem:
        """Raises NotFoundError."""
        for item in self.items:
            if item.id == item_id:
                return item
        raise NotFoundError(
            f"conversation '{self.id}' has no item '{item_id[:80]}': list its items",
            param="item_id",
            code="item_not_found",
        )

    def without(self, item_id: str) -> StoredConversation:
        """Raises NotFoundError."""
        found = self.find(item_id)
        return replace(self, items=tuple(item for item in self.items if item is not found))


class ConversationStore(TenantStore[StoredConversation]):
    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_entries, max_bytes, _not_found)

    def with_room(self, tenant: Tenant, conversation_id: str, count: int) -> StoredConversation:
        """The conversation, to which `count` items may be added. Raises NotFoundError, and RequestError where
        it is full.
        """
        found = self.get(tenant, conversation_id)
        check_room(len(found.items) + count, sum(len(item.json) for item in found.items))
        return found

    def find_items(self, tenant: Tenant, wanted: Collection[str]) -> dict[str, bytes]:
        """JSON of items by their ids, as far as they are in some conversation."""
        held = (item for entry in self.entries(tenant) for item in entry.items if item.id in wanted)
        return {item.id: item.json for item in held if not item.json.startswith(_REFERENCE)}

    def add(self, tenant: Tenant, conversation_id: str, items: list[StoredItem]) -> None:
        """At the end of what it holds by now. An id that is there already is not added again. Raises
        NotFoundError.
        """
        found = self.get(tenant, conversation_id)
        there = {item.id for item in found.items}
        added = [item for item in items if item.id not in there]
        self.put(tenant, replace(found, items=(*found.items, *added)))


def check_room(items: int, size_bytes: int) -> None:
    """Raises RequestError where one conversation cannot hold so many."""
    if items > MAX_ITEMS or size_bytes > MAX_ITEM_BYTES:
        raise RequestError(
            f"a conversation holds at most {MAX_ITEMS} items and {MAX_ITEM_BYTES >> 20} MiB: begin a new one",
            param="conversation",
            code="conversation_full",
        )


def _not_found(conversation_id: str) -> NotFoundError:
    return NotFoundError(
        f"no conversation '{conversation_id[:80]}' is stored here: it was deleted, pushed out by newer ones, "
        "or belongs to another key; create a new one",
        param="conversation",
        code="conversation_not_found",
    )
