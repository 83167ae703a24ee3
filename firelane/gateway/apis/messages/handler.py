"""/v1/messages: Anthropic's API."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from firelane.api.chat import ChatRequest
from firelane.api.decode import BodyDecoder
from firelane.gateway.apis.messages.answer import (
    MessageAnswer,
    MessagesError,
    TokensCount,
    answer_as_anthropic,
)
from firelane.gateway.apis.messages.chat import as_chat, ignored
from firelane.gateway.apis.messages.format import MessagesEncoder
from firelane.gateway.apis.messages.types import HINTS, CountTokensRequest, MessagesRequest
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import LiveUsage
from firelane.gateway.requests.generation import (
    GenerationRequest,
    new_id,
    new_identity,
    output_options,
    start_generation,
)
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Replies
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.text.prompt import Prompt


class MessagesHandler:
    def __init__(self, models: Models, bodies: Bodies, replies: Replies, streams: KeptStreams) -> None:
        self._models = models
        self._bodies = bodies
        self._replies = replies
        self._streams = streams
        self._requests: BodyDecoder[MessagesRequest] = BodyDecoder(MessagesRequest, HINTS)
        self._counts: BodyDecoder[CountTokensRequest] = BodyDecoder(CountTokensRequest, HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(
            summary="Answer a conversation (Anthropic's form)",
            body=MessagesRequest,
            answer=MessageAnswer,
            stream=True,
            errors=MessagesError,
        )
        count = Doc(
            summary="Count a conversation's tokens (Anthropic's form)",
            body=CountTokensRequest,
            answer=TokensCount,
            errors=MessagesError,
        )
        yield Route("POST", "/v1/messages", self.create, doc=doc, prepare=answer_as_anthropic)
        path = "/v1/messages/count_tokens"
        yield Route("POST", path, self.count_tokens, doc=count, prepare=answer_as_anthropic)

    async def create(self, exchange: Exchange) -> None:
        body = self._streams.body_of(exchange)
        request = await self._bodies.read(exchange, self._requests)
        generate = partial(self._generate, request)
        await self._streams.answer(exchange, body, new_id("msg_"), generate, stream=request.stream)

    async def _generate(self, request: MessagesRequest, answer_id: str, exchange: Exchange) -> None:
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        with model.reserve(exchange, 1) as reservation:
            fields = as_chat(request)
            room = model.text_room(exchange, "messages")
            chat = await model.assistant.chat(fields, room)
            prompt = await model.assistant.encode(chat, room)
            live = LiveUsage()
            options = output_options(fields, logprobs=False, visible_special_ids=chat.visible_special_ids)
            identity, capped = new_identity(answer_id, fields, model), _cap(fields, model, prompt)
            self._bodies.ignored.note(exchange, ignored(request, chat.ignored))
            generation = GenerationRequest(
                fields=fields,
                format=MessagesEncoder(identity, live, exchange.id, capped=capped),
                options=replace(options, live_usage=live),
                prompts=[prompt],
                splitter=chat.splitter,
                grammar=chat.grammar,
            )
            await start_generation(model, reservation, generation)

    async def count_tokens(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._counts)
        model = self._models.find(request.model, exchange.request.tenant)
        with model.reserve_text(exchange):
            room = model.counting_room(exchange, "messages")
            chat = await model.assistant.chat(as_chat(request), room)
            prompt = await model.assistant.encode(chat, room)
        self._replies.json(exchange, TokensCount(input_tokens=len(prompt)))


def _cap(fields: ChatRequest, model: ServedModel, prompt: Prompt) -> bool:
    """Leave `max_tokens` out where the context has less room: clients of this API must name a number, and
    often name a large one. Raises EngineDeadError.
    """
    room = model.serving().max_model_len - len(prompt)
    if (fields.max_tokens or 0) <= room:
        return False
    fields.max_tokens = None
    return True
