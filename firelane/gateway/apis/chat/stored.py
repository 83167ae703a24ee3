"""/v1/chat/completions/{completion_id}: answers that are kept, as OpenAI has them, and their streams."""

from __future__ import annotations

import contextlib
import urllib.parse
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import replace

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.stored.chats import (
    StoredChat,
    StoredChatDeleted,
    StoredChatList,
    StoredChatsQuery,
    StoredChatUpdate,
    StoredMessagesQuery,
)
from firelane.api.stored.paging import PageCursor, read_query
from firelane.errors import NotFoundError, RequestError
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.chat_store import ChatStore, KeptChat, not_found
from firelane.gateway.conversations.conversation_store import StoredItem
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Replies
from firelane.gateway.streams.kept_streams import KeptStreams, StreamState
from firelane.gateway.streams.stream_query import StreamQuery, stream_query

PATH = "/v1/chat/completions"
PREFIX = "chatcmpl-"
DEFAULT_ITEMS, MOST_ITEMS = 20, 100


class StoredChatHandler:
    def __init__(self, bodies: Bodies, store: ChatStore, streams: KeptStreams, replies: Replies) -> None:
        self._bodies = bodies
        self._store = store
        self._streams = streams
        self._replies = replies
        self._change: BodyDecoder[StoredChatUpdate] = BodyDecoder(StoredChatUpdate)

    def routes(self) -> Iterator[Route]:
        one = PATH + "/{completion_id}"
        listing = Doc(summary="List stored answers", answer=StoredChatList, query=StoredChatsQuery)
        yield Route("GET", PATH, self.list, doc=listing)
        reading = Doc(
            summary="Read a stored answer, or on in its stream", answer=StoredChat, query=StreamQuery
        )
        yield Route("GET", one, self.read, doc=reading)
        update = Doc(summary="Change its metadata", body=StoredChatUpdate, answer=StoredChat)
        yield Route("POST", one, self.update, doc=update)
        delete = Doc(summary="End it, and forget it", answer=StoredChatDeleted)
        yield Route("DELETE", one, self.delete, doc=delete)
        messages = Doc(
            summary="The messages that it was made from", answer=StoredChatList, query=StoredMessagesQuery
        )
        yield Route("GET", f"{one}/messages", self.messages, doc=messages)

    def read(self, exchange: Exchange) -> Coroutine[None, None, None] | None:
        query = stream_query(exchange.request)
        if query.stream:
            return self._streams.read(exchange, _id(exchange), query.after)
        if self._streams.state(exchange, _id(exchange)) is StreamState.RUNNING:
            raise RequestError(
                "the answer is still being made: read on in it with `stream=true`, or wait for its end",
                param="stream",
            )
        self._replies.send(exchange, self._get(exchange).body)
        return None

    def list(self, exchange: Exchange) -> None:
        query = exchange.request.query
        asked = list(_metadata_fields(query))
        fields = read_query(query, (*StoredChatsQuery.__struct_fields__, *asked))
        wanted = {name[len("metadata[") : -1]: fields.pop(name) for name in asked}
        model = fields.pop("model", None)
        cursor = _cursor(fields)
        entries = sorted(self._store.entries(exchange.request.tenant), key=lambda entry: entry.serial)
        found = [
            entry
            for entry in entries
            if (model is None or entry.model == model) and wanted.items() <= entry.metadata.items()
        ]
        shown, more = cursor.cut(found)
        self._page(exchange, [StoredItem(entry.id, entry.body) for entry in shown], more=more)

    def messages(self, exchange: Exchange) -> None:
        cursor = _cursor(read_query(exchange.request.query, StoredMessagesQuery.__struct_fields__))
        shown, more = cursor.cut(self._get(exchange).items())
        self._page(exchange, shown, more=more)

    def _page(self, exchange: Exchange, shown: Sequence[StoredItem], *, more: bool) -> None:
        self._replies.json(
            exchange,
            StoredChatList(
                data=[msgspec.Raw(item.json) for item in shown],
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=more,
            ),
        )

    async def update(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._change)
        changed = replace(self._get(exchange), metadata=request.metadata or {})
        self._store.put(exchange.request.tenant, changed)
        self._replies.send(exchange, changed.body)

    def delete(self, exchange: Exchange) -> None:
        answer_id, tenant = _id(exchange), exchange.request.tenant
        had_stream = self._streams.state(exchange, answer_id) is not StreamState.NONE
        if had_stream:
            self._streams.forget(exchange, answer_id)
        with contextlib.suppress(NotFoundError) if had_stream else contextlib.nullcontext():
            self._store.delete(tenant, answer_id)
        self._replies.json(exchange, StoredChatDeleted(id=answer_id))

    def _get(self, exchange: Exchange) -> KeptChat:
        return self._store.get(exchange.request.tenant, _id(exchange))


def _id(exchange: Exchange) -> str:
    """Raises NotFoundError for another API's."""
    found = exchange.request.params["completion_id"]
    if not found.startswith(PREFIX):
        raise not_found(found)
    return found


def _metadata_fields(query: bytes) -> Iterable[str]:
    """Names of the query's fields that ask for metadata."""
    pairs = urllib.parse.parse_qsl(query.decode("ascii", "replace")[:8192])
    return dict.fromkeys(name for name, _ in pairs if name.startswith("metadata[") and name.endswith("]"))


def _cursor(fields: dict[str, str]) -> PageCursor:
    """Raises RequestError."""
    return PageCursor.read({"order": "asc", **fields}, default=DEFAULT_ITEMS, most=MOST_ITEMS)
