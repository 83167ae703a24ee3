"""/v1/conversations: items that are kept between requests."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.stored.conversations import (
    ConversationDeleted,
    ConversationObject,
    ConversationRequest,
    ConversationUpdate,
    ItemsRequest,
)
from firelane.api.stored.paging import PageCursor, read_query
from firelane.api.stored.responses import InputItemList, InputItemsQuery
from firelane.api.stored.responses_items import InputItem
from firelane.errors import RequestError
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.conversation_store import (
    ConversationStore,
    StoredConversation,
    StoredItem,
    check_room,
)
from firelane.gateway.conversations.turn import stored_items
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Replies

PATH = "/v1/conversations"
DEFAULT_ITEMS, MOST_ITEMS = 20, 100
INCLUDE = ("include", "include[]")
"""Query fields that ask for details of items which no answer here has."""


class ConversationHandler:
    def __init__(self, bodies: Bodies, store: ConversationStore, replies: Replies) -> None:
        self._bodies = bodies
        self._store = store
        self._replies = replies
        self._new: BodyDecoder[ConversationRequest] = BodyDecoder(ConversationRequest)
        self._change: BodyDecoder[ConversationUpdate] = BodyDecoder(ConversationUpdate)
        self._items: BodyDecoder[ItemsRequest] = BodyDecoder(ItemsRequest)

    def routes(self) -> Iterable[Route]:
        one, about = PATH + "/{id}", ConversationObject
        create = Doc(summary="Begin a conversation", body=ConversationRequest, answer=about)
        update = Doc(summary="Change its metadata", body=ConversationUpdate, answer=about)
        delete = Doc(summary="Forget a conversation", answer=ConversationDeleted)
        yield Route("POST", PATH, self.create, doc=create)
        yield Route("GET", one, self.read, doc=Doc(summary="Describe a conversation", answer=about))
        yield Route("POST", one, self.update, doc=update)
        yield Route("DELETE", one, self.delete, doc=delete)
        yield from self._item_routes(one + "/items")

    def _item_routes(self, path: str) -> Iterable[Route]:
        listing = Doc(summary="List items", answer=InputItemList, query=InputItemsQuery)
        add = Doc(summary="Add items", body=ItemsRequest, answer=InputItemList)
        one = path + "/{item_id}"
        yield Route("GET", path, self.list_items, doc=listing)
        yield Route("POST", path, self.add_items, doc=add)
        yield Route("GET", one, self.read_item, doc=Doc(summary="Read an item", answer=InputItem))
        yield Route(
            "DELETE", one, self.delete_item, doc=Doc(summary="Forget an item", answer=ConversationObject)
        )

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._new)
        if not self._store.enabled:
            raise RequestError("this server keeps no conversations (max_stored_responses = 0)")
        about = ConversationObject(
            id=f"conv_{secrets.token_hex(24)}", created_at=int(time.time()), metadata=request.metadata or {}
        )
        items = tuple(stored_items(request.items or []))
        check_room(len(items), sum(len(item.json) for item in items))
        self._store.put(exchange.request.tenant, StoredConversation(about, items))
        self._replies.json(exchange, about)

    def read(self, exchange: Exchange) -> None:
        self._replies.json(exchange, self._find(exchange).about)

    async def update(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._change)
        found = self._find(exchange)
        about = msgspec.structs.replace(found.about, metadata=request.metadata)
        self._store.put(exchange.request.tenant, replace(found, about=about))
        self._replies.json(exchange, about)

    def delete(self, exchange: Exchange) -> None:
        self._store.delete(exchange.request.tenant, _id(exchange))
        self._replies.json(exchange, ConversationDeleted(id=_id(exchange)))

    def list_items(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("limit", "order", "after", *INCLUDE))
        page = PageCursor.read(fields, default=DEFAULT_ITEMS, most=MOST_ITEMS)
        shown, more = page.cut(self._find(exchange).items)
        self._replies.json(exchange, _listed(shown, more=more))

    async def add_items(self, exchange: Exchange) -> None:
        read_query(exchange.request.query, INCLUDE)
        request = await self._bodies.read(exchange, self._items)
        tenant, items = exchange.request.tenant, stored_items(request.items)
        held = self._store.with_room(tenant, _id(exchange), len(items)).items
        check_room(0, sum(len(item.json) for item in (*held, *items)))
        self._store.add(tenant, _id(exchange), items)
        self._replies.json(exchange, _listed(items, more=False))

    def read_item(self, exchange: Exchange) -> None:
        read_query(exchange.request.query, INCLUDE)
        self._replies.send(exchange, self._find(exchange).find(_item_id(exchange)).json)

    def delete_item(self, exchange: Exchange) -> None:
        rest = self._find(exchange).without(_item_id(exchange))
        self._store.put(exchange.request.tenant, rest)
        self._replies.json(exchange, rest.about)

    def _find(self, exchange: Exchange) -> StoredConversation:
        """Raises NotFoundError."""
        return self._store.get(exchange.request.tenant, _id(exchange))


def _listed(items: Sequence[StoredItem], *, more: bool) -> InputItemList:
    return InputItemList(
        data=[msgspec.Raw(item.json) for item in items],
        first_id=items[0].id if items else None,
        last_id=items[-1].id if items else None,
        has_more=more,
    )


def _id(exchange: Exchange) -> str:
    return exchange.request.params["id"]


def _item_id(exchange: Exchange) -> str:
    return exchange.request.params["item_id"]
