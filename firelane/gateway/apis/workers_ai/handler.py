"""Workers AI: the native form, and the paths at which Cloudflare has OpenAI's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.sampling import RunOptions
from firelane.api.stored.paging import read_query
from firelane.errors import RequestError
from firelane.gateway.apis.workers_ai.chat import as_chat, as_completion
from firelane.gateway.apis.workers_ai.format import WorkersEncoder, failure
from firelane.gateway.apis.workers_ai.types import RunAnswer, RunFailure, RunQuery, RunRequest
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.generation import GenerationRequest, output_options, start_generation
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.text.schemas.constraints import grammar_of, schema_notes

ACCOUNT = "/client/v4/accounts/{account}/ai"
OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class WorkersAiHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._decoder: BodyDecoder[RunRequest] = BodyDecoder(RunRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(
            summary="Generate a text (the native form of Workers AI)",
            body=RunRequest,
            answer=RunAnswer,
            query=RunQuery,
            stream=True,
            errors=RunFailure,
        )
        yield Route("POST", f"{ACCOUNT}/run/{{model+}}", self.run, doc=doc, prepare=_answer_in_own_form)

    async def run(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        if _rejects_if_busy(exchange.request.query):
            request.options = RunOptions(reject_if_busy=True)
        model = await self._models.find_loaded(_name(exchange), exchange, streams=request.stream)
        with model.reserve(exchange, 1, request.options) as reservation:
            make = self._raw_generation if request.raw else self._generation
            await start_generation(model, reservation, await make(model, request, exchange))

    async def _raw_generation(
        self, model: ServedModel, request: RunRequest, exchange: Exchange
    ) -> GenerationRequest:
        fields = as_completion(request, _name(exchange))
        self._bodies.ignored.note(exchange, schema_notes(fields))
        return GenerationRequest(
            fields=fields,
            format=WorkersEncoder(as_json=False),
            options=output_options(fields, logprobs=False),
            prompts=await model.prompts.completion(fields, model.text_room(exchange, "prompt")),
            grammar=grammar_of(fields),
        )

    async def _generation(
        self, model: ServedModel, request: RunRequest, exchange: Exchange
    ) -> GenerationRequest:
        fields = as_chat(request, _name(exchange))
        room = model.text_room(exchange, "messages")
        chat = await model.assistant.chat(fields, room)
        self._bodies.ignored.note(exchange, chat.ignored)
        form = request.response_format
        return GenerationRequest(
            fields=fields,
            format=WorkersEncoder(as_json=form is not None and form.type != "text"),
            options=output_options(fields, logprobs=False, visible_special_ids=chat.visible_special_ids),
            prompts=[await model.assistant.encode(chat, room)],
            splitter=chat.splitter,
            grammar=chat.grammar,
        )


def _answer_in_own_form(exchange: Exchange) -> None:
    exchange.error_form = failure


def _name(exchange: Exchange) -> str:
    return exchange.request.params["model"]


def openai_routes(routes: Iterable[Route]) -> Iterable[Route]:
    """Routes that Cloudflare has too, at its paths. What is kept is read at the plain ones."""
    for route in routes:
        if route.method == "POST" and route.pattern in OPENAI_PATHS:
            yield dataclasses.replace(route, pattern=ACCOUNT + route.pattern)


def _rejects_if_busy(query: bytes) -> bool:
    """Raises RequestError."""
    value = read_query(query, ("rejectIfBusy",)).get("rejectIfBusy", "false")
    if value not in ("true", "false"):
        raise RequestError(f"`rejectIfBusy` is '{value[:40]}': use true or false", param="rejectIfBusy")
    return value == "true"
