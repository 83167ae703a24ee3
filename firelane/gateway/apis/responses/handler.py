"""/v1/responses: answers that are made of items, and that a later request can continue."""

from __future__ import annotations

import contextlib
from collections.abc import Coroutine, Iterable
from functools import partial

import msgspec

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.api.stored.paging import PageCursor, read_query
from firelane.api.stored.responses import (
    RESPONSE_HINTS,
    InputItemList,
    InputItemsQuery,
    InputTokens,
    ResponseDeleted,
    ResponseObject,
    ResponseQuery,
    ResponsesRequest,
)
from firelane.errors import ContextLengthError, NotFoundError, RequestError
from firelane.gateway.apis.responses.chat import as_chat
from firelane.gateway.apis.responses.format import ResponsesEncoder
from firelane.gateway.apis.responses.parts import left_out_of
from firelane.gateway.apis.responses.tools import left_out, names_of
from firelane.gateway.bodies import Bodies
from firelane.gateway.conversations.background import BackgroundExchange
from firelane.gateway.conversations.conversation_store import StoredItem
from firelane.gateway.conversations.turn import (
    ConversationStores,
    ConversationTurn,
    begin_turn,
    initial_answer,
)
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.generation import GenerationRequest, output_options, start_generation
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Replies
from firelane.gateway.streams.event_log import EventLog
from firelane.gateway.streams.event_logs import EventLogs
from firelane.text.chat.assistant import RenderedChat
from firelane.text.prompt import Prompt
from firelane.text.tokens.tokenizer import TextRoom

DEFAULT_ITEMS, MOST_ITEMS = 20, 100
INCLUDE = ("include", "include[]")
"""Query fields that ask for details of items which no answer here has."""


class _Status(msgspec.Struct):
    background: bool


class ResponsesHandler:
    def __init__(self, models: Models, bodies: Bodies, kept: ConversationStores, replies: Replies) -> None:
        self._models = models
        self._bodies = bodies
        self._kept = kept
        self._store = kept.responses
        self._running: dict[str, BackgroundExchange] = {}
        self._logs = EventLogs()
        self._replies = replies
        self._decoder: BodyDecoder[ResponsesRequest] = BodyDecoder(ResponsesRequest, RESPONSE_HINTS)

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
        yield Route(
            "POST", "/v1/responses/compact", self.compact, doc=Doc(summary="Refused: nothing is compacted")
        )
        reading = Doc(summary="Read a stored answer", answer=ResponseObject, query=ResponseQuery)
        yield Route("GET", one, self.read, doc=reading)
        yield Route(
            "DELETE", one, self.delete, doc=Doc(summary="Forget a stored answer", answer=ResponseDeleted)
        )
        yield Route(
            "POST",
            f"{one}/cancel",
            self.cancel,
            doc=Doc(summary="End an answer made in the background", answer=ResponseObject),
        )
        yield Route(
            "GET",
            f"{one}/input_items",
            self.input_items,
            doc=Doc(summary="What an answer was made from", answer=InputItemList, query=InputItemsQuery),
        )

    async def create(self, exchange: Exchange) -> None:
        request, turn, model = await self._begin(exchange)
        streams = request.stream is True and not request.background
        model = await model.until_loaded(exchange, streams=streams)
        answer = initial_answer(request, model.name, self._kept)
        if request.background:
            await self._create_in_background(exchange, request, turn, model, answer)
        else:
            format = self._format(exchange, request, turn, model, answer)
            await self._generate(exchange, request, turn, model, format)

    async def _create_in_background(
        self,
        exchange: Exchange,
        request: ResponsesRequest,
        turn: ConversationTurn,
        model: ServedModel,
        answer: ResponseObject,
    ) -> None:
        """Answers the client once the engine has the request; what is wrong with it is known by then."""
        tenant = exchange.request.tenant
        answer.status = "queued"
        queued = encode_json(answer)
        answer.status = "in_progress"
        log = self._logs.begin(tenant, answer.id) if request.stream else None
        turn.keep_unfinished(self._kept, tenant, answer)
        format = self._format(exchange, request, turn, model, answer)
        work = self._running[answer.id] = self._background(exchange, turn, answer, format, log)
        try:
            await self._generate(work, request, turn, model, format)
        except BaseException:
            self._running.pop(answer.id, None)
            self._logs.forget(tenant, answer.id)
            with contextlib.suppress(NotFoundError):
                self._store.delete(tenant, answer.id)
            raise
        finally:
            exchange.extra_headers += work.extra_headers
        if log is None:
            self._replies.send(exchange, queued)
        else:
            work.send(format.opening(0))
            await log.follow(exchange, 0)

    def _background(
        self,
        exchange: Exchange,
        turn: ConversationTurn,
        answer: ResponseObject,
        format: ResponsesEncoder,
        log: EventLog | None,
    ) -> BackgroundExchange:
        def ended(answer: ResponseObject) -> None:
            self._running.pop(answer.id, None)
            if answer.status in ("failed", "cancelled"):
                turn.keep_unfinished(self._kept, exchange.request.tenant, answer)
            if log is not None:
                self._logs.append(log, format.stopped())
                self._logs.end(log)

        on_events = None if log is None else partial(self._logs.append, log)
        return BackgroundExchange(exchange, answer, ended, on_events)

    def _format(
        self,
        exchange: Exchange,
        request: ResponsesRequest,
        turn: ConversationTurn,
        model: ServedModel,
        answer: ResponseObject,
    ) -> ResponsesEncoder:
        tenant = exchange.request.tenant

        def keep(done: ResponseObject, body: bytes) -> None:
            turn.keep(self._kept, tenant, done, body)

        return ResponsesEncoder(answer, model.tokenizer, keep, names_of(request.tools or []).own_name)

    async def _generate(
        self,
        exchange: Exchange,
        request: ResponsesRequest,
        turn: ConversationTurn,
        model: ServedModel,
        format: ResponsesEncoder,
    ) -> None:
        with model.reserve(exchange, 1, request.options) as reservation:
            room = model.text_room(exchange, "input")
            chat, rendered, prompt = await _fitting(model, request, turn, room)
            ignored = [*_of_input(rendered.ignored), *left_out(request.tools or []), *left_out_of(turn.own)]
            self._bodies.ignored.note(exchange, ignored)
            generation = GenerationRequest(
                fields=chat,
                format=format,
                options=output_options(
                    chat, logprobs=request.wants_logprobs, visible_special_ids=rendered.visible_special_ids
                ),
                prompts=[prompt],
                splitter=rendered.splitter,
                grammar=rendered.grammar,
                reports=(request.top_logprobs or 0 if request.wants_logprobs else -1, -1),
            )
            await start_generation(model, reservation, generation)

    async def _begin(self, exchange: Exchange) -> tuple[ResponsesRequest, ConversationTurn, ServedModel]:
        request = await self._bodies.read(exchange, self._decoder)
        model = self._models.find(request.model, exchange.request.tenant)
        if request.background and exchange.request.background:
            raise RequestError(
                "a batch's lines are in the background already: leave it out", param="background"
            )
        if request.previous_response_id in self._running:
            raise RequestError(
                "the answer that this one continues is still being made: wait for its end",
                param="previous_response_id",
            )
        return request, begin_turn(request, self._kept, exchange.request.tenant), model

    async def input_tokens(self, exchange: Exchange) -> None:
        request, turn, model = await self._begin(exchange)
        with model.reserve_text(exchange):
            _, _, prompt = await _fitting(model, request, turn, model.counting_room(exchange, "input"))
        self._replies.json(exchange, InputTokens(input_tokens=len(prompt)))

    def compact(self, exchange: Exchange) -> None:
        """Raises RequestError."""
        exchange.request.body = b""
        raise RequestError(
            "this server compacts no conversations: send the items to /v1/responses, with `truncation` "
            "`auto` where they do not fit, or have the model write a summary",
            code="unsupported_endpoint",
        )

    def read(self, exchange: Exchange) -> Coroutine[None, None, None] | None:
        query = _read_query(exchange.request.query)
        tenant = exchange.request.tenant
        entry = self._store.get(tenant, _id(exchange))
        if not query.stream:
            self._replies.send(exchange, entry.body)
            return None
        log = self._logs.get(tenant, entry.id)
        if log is None:
            raise RequestError(
                "only an answer that was made with `background` and `stream` can be streamed again, and only "
                "as long as its events are kept: leave `stream` out",
                param="stream",
            )
        number = 0 if query.starting_after is None else query.starting_after + 1
        if number < log.first:
            raise RequestError(
                f"events are kept from number {log.first} on: give starting_after={log.first - 1} or more",
                param="starting_after",
            )
        return log.follow(exchange, number)

    def delete(self, exchange: Exchange) -> None:
        tenant = exchange.request.tenant
        self._store.get(tenant, _id(exchange))
        if _id(exchange) in self._running:
            self._running[_id(exchange)].cancel()
        self._logs.forget(tenant, _id(exchange))
        self._store.delete(tenant, _id(exchange))
        self._replies.json(exchange, ResponseDeleted(id=_id(exchange)))

    def cancel(self, exchange: Exchange) -> None:
        tenant = exchange.request.tenant
        found = self._store.get(tenant, _id(exchange))
        if not msgspec.json.decode(found.body, type=_Status).background:
            raise RequestError("only an answer made in the background can be cancelled")
        if _id(exchange) in self._running:
            self._running[_id(exchange)].cancel()
        self._replies.send(exchange, self._store.get(tenant, _id(exchange)).body)

    def input_items(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("limit", "order", "after", *INCLUDE))
        page = PageCursor.read(fields, default=DEFAULT_ITEMS, most=MOST_ITEMS)
        entry = self._store.get(exchange.request.tenant, _id(exchange))
        items = [StoredItem(msgspec.json.decode(json)["id"], json) for json in entry.inputs]
        shown, more = page.cut(items)
        self._replies.json(
            exchange,
            InputItemList(
                data=[msgspec.Raw(item.json) for item in shown],
                first_id=shown[0].id if shown else None,
                last_id=shown[-1].id if shown else None,
                has_more=more,
            ),
        )


async def _fitting(
    model: ServedModel, request: ResponsesRequest, turn: ConversationTurn, room: TextRoom
) -> tuple[ChatRequest, RenderedChat, Prompt]:
    """The request as a chat. With `truncation` "auto", without as many of the first items as it takes to fit
    the context. Raises ContextLengthError where nothing fits.
    """
    context = model.max_model_len
    if request.truncation != "auto" or context is None:
        return await _encoded(model, request, turn, room)
    most = context - (request.max_output_tokens or 1)
    found = await _shortened(model, request, turn, room, most)
    if found is not None:
        return found
    fewest, last = 1, len(turn.earlier) + len(turn.own) - 1
    while fewest <= last:
        dropped = (fewest + last) // 2
        kept = turn.without(dropped)
        shorter = await _shortened(model, request, kept, room, most) if kept.own or kept.earlier else None
        if shorter is not None:
            found, last = shorter, dropped - 1
        else:
            fewest = dropped + 1
    return found or await _encoded(model, request, turn, room)


async def _shortened(
    model: ServedModel, request: ResponsesRequest, turn: ConversationTurn, room: TextRoom, most: int
) -> tuple[ChatRequest, RenderedChat, Prompt] | None:
    """None where it has more than `most` tokens."""
    try:
        found = await _encoded(model, request, turn, room)
    except ContextLengthError:
        return None
    return found if len(found[2]) <= most else None


async def _encoded(
    model: ServedModel, request: ResponsesRequest, turn: ConversationTurn, room: TextRoom
) -> tuple[ChatRequest, RenderedChat, Prompt]:
    chat = as_chat(request, turn.earlier, turn.own)
    rendered = await model.assistant.chat(chat, room)
    return chat, rendered, await model.assistant.encode(rendered, room)


def _of_input(ignored: Iterable[str]) -> list[str]:
    """Names of fields of a chat as this API has them."""
    return [name.replace("messages[]", "input[]") for name in ignored]


def _read_query(query: bytes) -> ResponseQuery:
    """Raises RequestError."""
    fields = read_query(query, (*INCLUDE, *ResponseQuery.__struct_fields__))
    own = {name: value for name, value in fields.items() if name not in INCLUDE}
    try:
        found = msgspec.convert(own, ResponseQuery, strict=False)
    except msgspec.ValidationError as error:
        raise RequestError(f"the query is wrong: {error}") from None
    if found.starting_after is not None and not found.stream:
        raise RequestError("`starting_after` is for `stream=true`", param="starting_after")
    return found


def _id(exchange: Exchange) -> str:
    return exchange.request.params["response_id"]
