"""/v1/conversations: requests and answers."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from firelane.api.stored.responses import MetadataKey, MetadataText
from firelane.api.stored.responses_items import InputItem

MOST_ADDED = 20
"""Items that one request may add."""
Metadata = Annotated[dict[MetadataKey, MetadataText], Meta(max_length=16)]


class ConversationRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A new conversation."""

    items: Annotated[list[InputItem], Meta(max_length=MOST_ADDED)] | None = None
    metadata: Metadata | None = None

    def check(self) -> None:
        """Raises RequestError."""
        _check(self.items or [])


class ConversationUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    metadata: Metadata

    def check(self) -> None:
        pass


class ItemsRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Items to add at the end."""

    items: Annotated[list[InputItem], Meta(min_length=1, max_length=MOST_ADDED)]

    def check(self) -> None:
        """Raises RequestError."""
        _check(self.items)


class ConversationObject(msgspec.Struct, frozen=True, kw_only=True):
    """created_at: Unix time in seconds."""

    id: str
    object: Literal["conversation"] = "conversation"
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["conversation.deleted"] = "conversation.deleted"
    deleted: bool = True


def _check(items: list[InputItem]) -> None:
    for i, item in enumerate(items):
        item.check(f"items[{i}]")
