"""Answers of /v1/chat/completions that can be read again: in memory, bounded, each tenant's apart."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from firelane.api.chat import ChatRequest, Message
from firelane.api.stored.chats import StoredChatFields
from firelane.api.stored.conversations import Metadata
from firelane.errors import NotFoundError, RequestError
from firelane.gateway.conversations.conversation_store import StoredItem
from firelane.gateway.conversations.tenant_store import TenantStore
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.formats import encode_json

MAX_BYTES = 256 << 20
ENTRY_BYTES = 1024
"""Bytes that an entry takes besides its JSON, about."""


class _Head(msgspec.Struct):
    id: str
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptChat:
    """fields: JSON of the answer and of StoredChatFields, without the bracket that ends it. messages: JSON of
    the request's, without their ids. serial: its place in the order of the answers.
    """

    id: str
    model: str
    serial: int
    fields: bytes
    messages: tuple[bytes, ...]
    metadata: dict[str, str]

    @property
    def size_bytes(self) -> int:
        texts = sum(len(key) + len(value) for key, value in self.metadata.items())
        return ENTRY_BYTES + len(self.fields) + 4 * texts + sum(64 + len(one) for one in self.messages)

    @property
    def body(self) -> bytes:
        """JSON of a StoredChat."""
        return b'%b,"metadata":%b}' % (self.fields, encode_json(self.metadata))

    def items(self) -> list[StoredItem]:
        """The messages with their ids."""
        found: list[StoredItem] = []
        for place, message in enumerate(self.messages):
            name = f"{self.id}-{place}"
            found.append(StoredItem(name, b'{"id":%b,%b' % (encode_json(name), message[1:])))
        return found


class ChatStore(TenantStore[KeptChat]):
    def __init__(self, max_entries: int, max_bytes: int = MAX_BYTES) -> None:
        super().__init__(max_entries, max_bytes, not_found)
        self._serials = itertools.count()

    def keeper(self, exchange: Exchange, request: ChatRequest) -> Callable[[bytes], None]:
        """Keeps the answer that it gets for a request. Raises RequestError where nothing is kept, or where
        the request's metadata cannot be.
        """
        if not self.enabled:
            raise RequestError(
                "`store` is true, but this server keeps no answers (max_stored_responses = 0): leave it out",
                param="store",
                code="unsupported_parameter",
            )
        metadata, tenant = _metadata(request.metadata), exchange.request.tenant
        about = encode_json(_fields(request, exchange.id))
        messages = tuple(encode_json(_message(message)) for message in request.messages)

        def keep(answer: bytes) -> None:
            head = msgspec.json.decode(answer, type=_Head)
            self.put(
                tenant,
                KeptChat(
                    id=head.id,
                    model=head.model,
                    serial=next(self._serials),
                    fields=b"%b,%b" % (answer[:-1], about[1:-1]),
                    messages=messages,
                    metadata=metadata,
                ),
            )

        return keep


def _metadata(given: Any) -> dict[str, str]:
    """Raises RequestError."""
    try:
        return msgspec.convert(given or {}, Metadata)
    except msgspec.ValidationError as error:
        raise RequestError(
            f"`metadata`: {error}: give up to 16 texts by name (64 and 512 characters)", param="metadata"
        ) from None


def _fields(request: ChatRequest, request_id: str) -> StoredChatFields:
    return StoredChatFields(
        seed=request.seed,
        temperature=request.temperature,
        top_p=request.top_p,
        presence_penalty=request.presence_penalty,
        frequency_penalty=request.frequency_penalty,
        response_format=_given(request.response_format),
        tool_choice=_given(request.tool_choice),
        tools=_given(request.tools),
        input_user=request.user,
        request_id=request_id,
    )


def _given(value: Any) -> Any:
    """The value as JSON has it, without fields that nobody gave."""
    plain: Any = msgspec.to_builtins(value)
    if isinstance(plain, list):
        return [_without_nulls(one) for one in plain]
    return _without_nulls(plain) if isinstance(plain, dict) else plain


def _without_nulls(fields: Any) -> Any:
    return {name: value for name, value in fields.items() if value is not None}


def _message(message: Message) -> dict[str, Any]:
    """A message as lists of them have it: parts stand beside the content."""
    fields = _without_nulls(msgspec.to_builtins(message))
    content = fields.pop("content", None)
    parts = [_without_nulls(part) for part in content] if isinstance(content, list) else None
    text = content if isinstance(content, str) else None
    return {"role": message.role, "content": text, "name": None, "content_parts": parts} | fields


def not_found(answer_id: str) -> NotFoundError:
    """The error for an answer that is not here."""
    return NotFoundError(
        f"no answer '{answer_id[:80]}' is stored here: it was made without `store: true`, deleted, pushed "
        "out by newer ones, or belongs to another key; ask again",
        code="completionnot_found",
    )
