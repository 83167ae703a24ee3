"""/api/chat and /api/generate: Ollama's API."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Literal

from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.api.node import keep_seconds
from firelane.api.sampling import SamplingFields
from firelane.gateway.apis.ollama.answer import (
    OllamaAnswerMessage,
    OllamaChatAnswer,
    OllamaError,
    OllamaGenerateAnswer,
    answer_as_ollama,
)
from firelane.gateway.apis.ollama.chat import as_chat, as_completion, ignored
from firelane.gateway.apis.ollama.format import OllamaEncoder, rfc3339
from firelane.gateway.apis.ollama.types import HINTS, OllamaChatRequest, OllamaGenerateRequest, OllamaRequest
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import NDJSON, Doc, Exchange, Route
from firelane.gateway.requests.formats import LiveUsage
from firelane.gateway.requests.generation import GenerationRequest, output_options, start_generation
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.requests.sinks import LINES, OutputOptions
from firelane.gateway.services import Replies
from firelane.text.prompt import Prompt
from firelane.text.schemas.constraints import grammar_of, schema_notes


class OllamaHandler:
    def __init__(self, models: Models, bodies: Bodies, replies: Replies) -> None:
        self._models = models
        self._bodies = bodies
        self._replies = replies
        self._chats: BodyDecoder[OllamaChatRequest] = BodyDecoder(OllamaChatRequest, HINTS)
        self._generates: BodyDecoder[OllamaGenerateRequest] = BodyDecoder(OllamaGenerateRequest, HINTS)

    def routes(self) -> Iterable[Route]:
        for path, handle, body, answer, what in (
            ("/api/chat", self.chat, OllamaChatRequest, OllamaChatAnswer, "Answer a conversation"),
            ("/api/generate", self.generate, OllamaGenerateRequest, OllamaGenerateAnswer, "Answer a text"),
        ):
            doc = Doc(
                summary=f"{what} (Ollama's form)",
                body=body,
                answer=answer,
                stream=True,
                stream_type=NDJSON.decode(),
                errors=OllamaError,
            )
            yield Route("POST", path, handle, doc=doc, prepare=answer_as_ollama)

    async def chat(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._chats)
        model = self._models.find_tagged(request.model, exchange.request.tenant)
        keep_s = keep_seconds(request.keep_alive)
        if not request.messages and keep_s == 0 and model.residence.leaves:
            self._put_away(exchange, model, request)
            return
        model = await model.until_loaded(exchange, keep_s=keep_s)
        if not request.messages:
            self._tell_loaded(exchange, model, request)
        else:
            await self._answer(exchange, model, request)

    async def generate(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._generates)
        model = self._models.find_tagged(request.model, exchange.request.tenant)
        keep_s = keep_seconds(request.keep_alive)
        if request.asks_nothing and keep_s == 0 and model.residence.leaves:
            self._put_away(exchange, model, request)
            return
        model = await model.until_loaded(exchange, keep_s=keep_s)
        if request.asks_nothing:
            self._tell_loaded(exchange, model, request)
        elif request.raw or request.suffix or (model.prompts.template is None and not request.system):
            await self._answer_raw(exchange, model, request)
        else:
            await self._answer(exchange, model, request)

    async def _answer(
        self, exchange: Exchange, model: ServedModel, request: OllamaChatRequest | OllamaGenerateRequest
    ) -> None:
        spoken = isinstance(request, OllamaChatRequest)
        with model.reserve(exchange, 1) as reservation:
            fields = as_chat(request)
            room = model.text_room(exchange, "messages" if spoken else "prompt")
            chat = await model.assistant.chat(fields, room)
            self._bodies.ignored.note(exchange, ignored(request, chat.ignored))
            prompt = await model.assistant.encode(chat, room)
            live = LiveUsage()
            options = output_options(
                fields, logprobs=bool(fields.logprobs), visible_special_ids=chat.visible_special_ids
            )
            generation = GenerationRequest(
                fields=_fitted(fields, model, prompt),
                format=OllamaEncoder(request.model, live, model.tokenizer, spoken=spoken),
                options=_as_lines(options, live),
                prompts=[prompt],
                splitter=chat.splitter,
                grammar=chat.grammar,
                reports=((fields.top_logprobs or 0) if fields.logprobs else -1, -1),
                fallback="llama.cpp",
            )
            await start_generation(model, reservation, generation)

    async def _answer_raw(
        self, exchange: Exchange, model: ServedModel, request: OllamaGenerateRequest
    ) -> None:
        with model.reserve(exchange, 1) as reservation:
            fields: CompletionRequest = as_completion(request)
            self._bodies.ignored.note(exchange, ignored(request, schema_notes(fields)))
            (prompt,) = await model.prompts.completion(fields, model.text_room(exchange, "prompt"))
            live, logprobs = LiveUsage(), fields.logprobs is not None
            generation = GenerationRequest(
                fields=_fitted(fields, model, prompt),
                format=OllamaEncoder(request.model, live, model.tokenizer, spoken=False),
                options=_as_lines(output_options(fields, logprobs=logprobs), live),
                prompts=[prompt],
                grammar=grammar_of(fields),
                reports=(-1 if fields.logprobs is None else fields.logprobs, -1),
                fallback="llama.cpp",
            )
            await start_generation(model, reservation, generation)

    def _put_away(self, exchange: Exchange, model: ServedModel, request: OllamaRequest) -> None:
        """The model leaves memory as soon as nobody uses it."""
        model.residence.used(0.0)
        self._tell(exchange, model, request, "unload")

    def _tell_loaded(self, exchange: Exchange, model: ServedModel, request: OllamaRequest) -> None:
        """Raises EngineDeadError."""
        model.serving()
        self._tell(exchange, model, request, "load")

    def _tell(
        self,
        exchange: Exchange,
        model: ServedModel,
        request: OllamaRequest,
        reason: Literal["load", "unload"],
    ) -> None:
        with model.reserve_text(exchange):
            created = rfc3339(time.time())
            if isinstance(request, OllamaChatRequest):
                message = OllamaAnswerMessage(content="")
                answer: OllamaChatAnswer | OllamaGenerateAnswer = OllamaChatAnswer(
                    model=request.model, created_at=created, done=True, done_reason=reason, message=message
                )
            else:
                answer = OllamaGenerateAnswer(
                    model=request.model, created_at=created, done=True, done_reason=reason, response=""
                )
        self._replies.json(exchange, answer)


def _as_lines(options: OutputOptions, live: LiveUsage) -> OutputOptions:
    return replace(options, live_usage=live, media=LINES)


def _fitted(fields: SamplingFields, model: ServedModel, prompt: Prompt) -> SamplingFields:
    """With a limit of tokens that the context has room for: a larger one means as many as there can be.
    Raises EngineDeadError.
    """
    room = max(1, model.serving().max_model_len - len(prompt))
    fields.max_tokens = min(fields.max_tokens or room, room)
    return fields
