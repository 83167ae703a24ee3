"""/v1/chat/completions: answers that are kept, and what they were made from."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from firelane.api.chat_answer import ChatResponse
from firelane.api.stored.conversations import Metadata


class StoredChatFields(msgspec.Struct, kw_only=True):
    """Fields of the request that a stored answer repeats. input_user: `user`."""

    seed: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: Any = None
    tool_choice: Any = None
    tools: Any = None
    input_user: Any = None
    request_id: str


class StoredChat(ChatResponse, kw_only=True):
    """An answer as it was given, with fields of its request."""

    seed: int | None
    temperature: float | None
    top_p: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    response_format: Any
    tool_choice: Any
    tools: Any
    input_user: Any
    request_id: str
    metadata: dict[str, str]


class StoredChatList(msgspec.Struct, frozen=True, kw_only=True):
    object: Literal["list"] = "list"
    data: list[msgspec.Raw]
    first_id: str | None
    last_id: str | None
    has_more: bool


class StoredChatsQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: the id of the answer before the first one wanted. model: the name that the request gave.
    `metadata[NAME]=VALUE` asks for answers that have it.
    """

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "asc"
    after: str | None = None
    model: str | None = None


class StoredMessagesQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """after: the id of the message before the first one wanted."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    order: Literal["asc", "desc"] = "asc"
    after: str | None = None


class StoredChatUpdate(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Other metadata, in place of what there is."""

    metadata: Metadata | None

    def check(self) -> None:
        pass


class StoredChatDeleted(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    deleted: bool = True
