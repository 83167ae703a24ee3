"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from firelane.api.chat import CHAT_HINTS, ChatRequest
from firelane.api.chat_answer import ChatResponse
from firelane.api.decode import BodyDecoder
from firelane.gateway.apis.chat.format import ChatEncoder
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.generation import (
    GenerationRequest,
    new_identity,
    output_options,
    start_generation,
)
from firelane.gateway.requests.models import Models


class ChatHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._decoder: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest, CHAT_HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Answer a conversation", body=ChatRequest, answer=ChatResponse, stream=True)
        yield Route("POST", "/v1/chat/completions", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        draws = request.n or 1
        with model.reserve(exchange, draws, request.options) as reservation:
            room = model.text_room(exchange, "messages", request)
            chat = await model.assistant.chat(request, room)
            self._bodies.ignored.note(exchange, chat.ignored)
            identity = new_identity("chatcmpl-", request, model)
            options = output_options(
                request, logprobs=bool(request.logprobs), visible_special_ids=chat.visible_special_ids
            )
            generation = GenerationRequest(
                fields=request,
                format=ChatEncoder(identity, model.tokenizer, legacy_calls=bool(request.functions)),
                options=replace(options, live_usage=identity.live_usage, prefix=_echoed(request)),
                prompts=[await model.assistant.encode(chat, room)],
                draws=draws,
                splitter=chat.splitter,
                grammar=chat.grammar,
                reports=(
                    request.top_logprobs or 0 if request.logprobs else -1,
                    -1 if request.prompt_logprobs is None else request.prompt_logprobs,
                ),
            )
            await start_generation(model, reservation, generation)


def _echoed(request: ChatRequest) -> str:
    """The start of the answer."""
    if not request.echo or not request.continue_final_message:
        return ""
    return request.messages[-1].text("messages")
