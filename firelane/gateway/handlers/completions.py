"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from firelane.api.completions import CompletionRequest, CompletionResponse
from firelane.api.decode import BodyDecoder
from firelane.gateway.best_of import BestOf
from firelane.gateway.completion_form import CompletionForm
from firelane.gateway.constraints import grammar_of
from firelane.gateway.exchange import Exchange
from firelane.gateway.forms import Identity
from firelane.gateway.generate import Generator, Job, new_identity, output_options
from firelane.gateway.outlets import OutputOptions
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Doc, Route


class Completions:
    def __init__(self, parts: Parts, generator: Generator) -> None:
        self._parts = parts
        self._generator = generator
        self._decoder: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Continue a text", body=CompletionRequest, answer=CompletionResponse, stream=True)
        yield Route("POST", "/v1/completions", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        parts = self._parts
        identity = new_identity("cmpl-", request, parts)
        job = Job(
            exchange=exchange,
            fields=request,
            form=CompletionForm(identity, parts.tokenizer),
            options=_options(request, identity),
            prompts=lambda: parts.prompts.completion(request),
            num_prompts=len(request.prompts()),
            reports=_reports(request),
            grammar=grammar_of(request),
        )
        await self._generator.start(job)


def _options(request: CompletionRequest, identity: Identity) -> OutputOptions:
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
