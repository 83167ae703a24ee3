"""/v1/responses: answers that are made of items, and that a later request can continue."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.api.paging import Page, read_query
from firelane.api.responses import (
    InputItemList,
    InputItemsQuery,
    InputTokens,
    ResponseDeleted,
    ResponseObject,
    ResponsesRequest,
)
from firelane.errors import RequestError
from firelane.gateway.exchange import Exchange
from firelane.gateway.forms import encode_json
from firelane.gateway.generate import Generator, Job, output_options
from firelane.gateway.parts import Parts
from firelane.gateway.responses.conversation import as_chat
from firelane.gateway.responses.form import ResponsesForm
from firelane.gateway.responses.turn import Turn, begin_turn, draft_answer
from firelane.gateway.routes import Doc, Route

DEFAULT_ITEMS, MOST_ITEMS = 20, 100
INCLUDE = ("include", "include[]")
"""Query fields that ask for details of items which no answer here has."""


@dataclass(frozen=True, slots=True)
class _StoredItem:
    id: str
    json: bytes


class Responses:
    def __init__(self, parts: Parts, generator: Generator) -> None:
        self._parts = parts
        self._generator = generator
        self._decoder: BodyDecoder[ResponsesRequest] = BodyDecoder(ResponsesRequest)

    def routes(self) -> Iterable[Route]:
        one = "/v1/responses/{response_id}"
        yield Route(
            "POST",
            "/v1/responses",
            self.create,
            doc=Doc(
                summary="Answer with output items", body=ResponsesRequest, answer=ResponseObject, stream=True
            ),
        )
        yield Route(
            "POST",
            "/v1/responses/input_tokens",
            self.input_tokens,
            doc=Doc(summary="Count a request's input tokens", body=ResponsesRequest, answer=InputTokens),
        )
        yield Route("GET", one, self.read, doc=Doc(summary="Read a stored answer", answer=ResponseObject))
        yield Route(
            "DELETE", one, self.delete, doc=Doc(summary="Forget a stored answer", answer=ResponseDeleted)
        )
        yield Route(
            "POST",
            f"{one}/cancel",
            self.cancel,
            doc=Doc(summary="Refused: no answer is made in the background", answer=ResponseObject),
        )
        yield Route(
            "GET",
            f"{one}/input_items",
            self.input_items,
            doc=Doc(summary="What an answer was made from", answer=InputItemList, query=InputItemsQuery),
        )

    async def create(self, exchange: Exchange) -> None:
        request, turn = self._begin(exchange)
        chat = await self._chat(request, turn)
        parts, tenant = self._parts, exchange.request.tenant
        answer = draft_answer(request, parts.served_names[0], parts.responses)

        def keep(done: ResponseObject, body: bytes) -> None:
            if done.store:
                turn.keep(parts.responses, tenant, done, body)

        assistant_turn = parts.assistant.chat(chat)
        await self._generator.start(
            Job(
                exchange=exchange,
                fields=chat,
                form=ResponsesForm(answer, parts.tokenizer, keep),
                options=output_options(
                    chat, logprobs=request.wants_logprobs, kept_ids=assistant_turn.kept_ids
                ),
                prompts=assistant_turn.prompts,
                splitter=assistant_turn.splitter,
                grammar=assistant_turn.grammar,
                reports=(request.top_logprobs or 0 if request.wants_logprobs else -1, -1),
            )
        )

    def _begin(self, exchange: Exchange) -> tuple[ResponsesRequest, Turn]:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        self._parts.gate.check_model(exchange, request.model)
        return request, begin_turn(request, self._parts.responses, exchange.request.tenant)

    async def _chat(self, request: ResponsesRequest, turn: Turn) -> ChatRequest:
        """With `truncation` "auto", without as many of the first items as it takes to fit the context."""
        chat = as_chat(request, turn.earlier, turn.own)
        max_model_len = self._parts.max_model_len
        if request.truncation != "auto" or max_model_len is None:
            return chat
        room = max_model_len - (request.max_output_tokens or 1)
        fits = await self._fits(chat, room)
        fewest, most = 1, len(turn.earlier) + len(turn.own) - 1
        while not fits and fewest <= most:
            dropped = (fewest + most) // 2
            kept = turn.without(dropped)
            shorter = as_chat(request, kept.earlier, kept.own) if kept.own or kept.earlier else None
            if shorter is not None and await self._fits(shorter, room):
                chat, most = shorter, dropped - 1
            else:
                fewest = dropped + 1
        return chat

    async def _fits(self, chat: ChatRequest, room_tokens: int) -> bool:
        (prompt,) = await self._parts.assistant.chat(chat).prompts()
        return len(prompt.ids) <= room_tokens

    async def input_tokens(self, exchange: Exchange) -> None:
        chat = await self._chat(*self._begin(exchange))
        (prompt,) = await self._parts.assistant.chat(chat).prompts()
        self._reply(exchange, InputTokens(input_tokens=len(prompt.ids)))

    def read(self, exchange: Exchange) -> None:
        read_query(exchange.request.query, INCLUDE)
        entry = self._parts.responses.get(exchange.request.tenant, _id(exchange))
        self._parts.accounting.responded(200)
        exchange.respond(200, entry.body)

    def delete(self, exchange: Exchange) -> None:
        self._parts.responses.delete(exchange.request.tenant, _id(exchange))
        self._reply(exchange, ResponseDeleted(id=_id(exchange)))

    def cancel(self, exchange: Exchange) -> None:
        self._parts.responses.get(exchange.request.tenant, _id(exchange))
        raise RequestError("only an answer made in the background can be cancelled: there are none here")

    def input_items(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("limit", "order", "after", *INCLUDE))
        page = Page.read(fields, default=DEFAULT_ITEMS, most=MOST_ITEMS)
        entry = self._parts.responses.get(exchange.request.tenant, _id(exchange))
        items = [_StoredItem(msgspec.json.decode(json)["id"], json) for json in entry.inputs]
        shown, more = page.cut(items)
        self._reply(
            exchange,
            InputItemList(
                data=[msgspec.Raw(item.json) for item in shown],
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=more,
            ),
        )

    def _reply(self, exchange: Exchange, answer: msgspec.Struct) -> None:
        self._parts.accounting.responded(200)
        exchange.respond(200, encode_json(answer))


def _id(exchange: Exchange) -> str:
    return exchange.request.params["response_id"]
