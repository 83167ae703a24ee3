"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial

from firelane.api.chat_answer import ChatResponse
from firelane.api.completions import CompletionRequest, CompletionResponse
from firelane.api.decode import BodyDecoder
from firelane.api.sampling import HINTS
from firelane.gateway.apis.chat.handler import ChatEncoder
from firelane.gateway.apis.completions.format import CompletionEncoder
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import BestOf, ResponseEncoder, ResponseIdentity
from firelane.gateway.requests.generation import (
    GenerationRequest,
    new_id,
    new_identity,
    output_options,
    start_generation,
)
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.sinks import OutputOptions
from firelane.gateway.streams.kept_streams import KeptStreams
from firelane.text.schemas.constraints import grammar_of, schema_notes
from firelane.text.tokens.tokenizer import Tokenizer

NewEncoder = Callable[[ResponseIdentity, Tokenizer], ResponseEncoder]


class CompletionHandler:
    def __init__(self, models: Models, bodies: Bodies, streams: KeptStreams) -> None:
        self._models = models
        self._bodies = bodies
        self._streams = streams
        self._decoder: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest, HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Continue a text", body=CompletionRequest, answer=CompletionResponse, stream=True)
        fill = Doc(
            summary="Fill a gap in a text (Mistral's form)",
            body=CompletionRequest,
            answer=ChatResponse,
            stream=True,
        )
        yield Route("POST", "/v1/completions", self.create, doc=doc)
        yield Route("POST", "/v1/fim/completions", self.fill, doc=fill)

    async def create(self, exchange: Exchange) -> None:
        body = self._streams.body_of(exchange)
        request = await self._bodies.read(exchange, self._decoder)
        generate = partial(self._generate, request, CompletionEncoder)
        await self._streams.answer(exchange, body, new_id("cmpl-"), generate, stream=request.stream)

    async def fill(self, exchange: Exchange) -> None:
        """Mistral's: the answer has the form of chat, and no limit where none is given."""
        request = await self._bodies.read(exchange, self._decoder)
        if request.max_tokens is None:
            request.max_tokens = -1
        await self._generate(request, ChatEncoder, new_id("fim-"), exchange)

    async def _generate(
        self, request: CompletionRequest, encoder: NewEncoder, answer_id: str, exchange: Exchange
    ) -> None:
        model = await self._models.find_loaded(request.model, exchange, streams=request.stream)
        draws = max(request.n or 1, request.best_of or 1)
        sequences = len(request.prompts()) * draws
        with model.reserve(exchange, sequences, request.options) as reservation:
            self._bodies.ignored.note(exchange, schema_notes(request))
            identity = new_identity(answer_id, request, model)
            generation = GenerationRequest(
                fields=request,
                format=encoder(identity, model.tokenizer),
                options=_options(request, identity),
                prompts=await model.prompts.completion(request, model.text_room(exchange, "prompt", request)),
                draws=draws,
                reports=_reports(request),
                grammar=grammar_of(request),
            )
            await start_generation(model, reservation, generation)


def _options(request: CompletionRequest, identity: ResponseIdentity) -> OutputOptions:
    options = output_options(
        request,
        logprobs=request.logprobs is not None,
        echo=bool(request.echo),
        hide_output=request.max_tokens == 0,
    )
    options = replace(options, live_usage=identity.live_usage)
    draws, keep = request.best_of or 1, request.n or 1
    if draws <= keep:
        return options
    hidden = request.logprobs is None
    return replace(options, logprobs=True, hide_logprobs=hidden, best_of=BestOf(draws, keep))


def _reports(request: CompletionRequest) -> tuple[int, int]:
    """Alternatives to report for a token of the output and of the prompt, as in Sampling."""
    top = -1 if request.logprobs is None else request.logprobs
    prompt = -1 if request.prompt_logprobs is None else request.prompt_logprobs
    ranked = (request.best_of or 1) > (request.n or 1)
    return max(top, 0 if ranked else -1), max(prompt, top if request.echo else -1)
