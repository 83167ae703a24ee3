"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.completions import CompletionRequest
from firelane.api.decode import BodyDecoder
from firelane.gateway.exchange import Exchange
from firelane.gateway.forms import CompletionForm
from firelane.gateway.generate import Generator, Job, new_identity, output_options
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Route


class Completions:
    def __init__(self, parts: Parts, generator: Generator) -> None:
        self._parts = parts
        self._generator = generator
        self._decoder: BodyDecoder[CompletionRequest] = BodyDecoder(CompletionRequest)

    def routes(self) -> Iterable[Route]:
        yield Route("POST", "/v1/completions", self.create)

    async def create(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        parts = self._parts
        top = -1 if request.logprobs is None else request.logprobs
        options = output_options(
            request, logprobs=top >= 0, echo=bool(request.echo), hide_output=request.max_tokens == 0
        )
        identity = new_identity("cmpl-", request, parts.served_names[0])
        job = Job(
            exchange=exchange,
            fields=request,
            form=CompletionForm(identity, parts.tokenizer),
            options=options,
            prompts=lambda: parts.prompts.completion(request),
            num_prompts=len(request.prompts()),
            reports=(top, top if request.echo else -1),
        )
        await self._generator.start(job)
