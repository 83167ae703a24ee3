"""Workers AI: the native form, and the paths at which Cloudflare has OpenAI's."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.paging import read_query
from firelane.api.sampling import RunOptions
from firelane.api.workers_ai import RunAnswer, RunFailure, RunQuery, RunRequest
from firelane.errors import RequestError
from firelane.gateway.exchange import Exchange
from firelane.gateway.generate import Generator, Job, output_options
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Doc, Route
from firelane.gateway.workers_ai.conversation import as_chat, as_completion
from firelane.gateway.workers_ai.failure import workers_exchange
from firelane.gateway.workers_ai.form import WorkersForm

ACCOUNT = "/client/v4/accounts/{account}/ai"
OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")


class WorkersAi:
    def __init__(self, parts: Parts, generator: Generator) -> None:
        self._parts = parts
        self._generator = generator
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
        yield Route("POST", f"{ACCOUNT}/run/{{model+}}", self.run, doc=doc, wrap=workers_exchange)

    async def run(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        if _rejects_if_busy(exchange.request.query):
            request.options = RunOptions(reject_if_busy=True)
        model = exchange.request.params["model"]
        job = self._raw_job(exchange, request, model) if request.raw else self._job(exchange, request, model)
        await self._generator.start(job)

    def _raw_job(self, exchange: Exchange, request: RunRequest, model: str) -> Job:
        fields = as_completion(request, model)
        return Job(
            exchange=exchange,
            fields=fields,
            form=WorkersForm(as_json=False),
            options=output_options(fields, logprobs=False),
            prompts=lambda: self._parts.prompts.completion(fields),
        )

    def _job(self, exchange: Exchange, request: RunRequest, model: str) -> Job:
        fields = as_chat(request, model)
        turn = self._parts.assistant.chat(fields)
        form = request.response_format
        return Job(
            exchange=exchange,
            fields=fields,
            form=WorkersForm(as_json=form is not None and form.type != "text"),
            options=output_options(fields, logprobs=False, kept_ids=turn.kept_ids),
            prompts=turn.prompts,
            splitter=turn.splitter,
            grammar=turn.grammar,
        )


def openai_routes(routes: Iterable[Route]) -> Iterable[Route]:
    """Those of `routes` that Cloudflare has too, at its paths."""
    for route in routes:
        if route.pattern in OPENAI_PATHS:
            yield dataclasses.replace(route, pattern=ACCOUNT + route.pattern)


def _rejects_if_busy(query: bytes) -> bool:
    """Raises RequestError."""
    value = read_query(query, ("rejectIfBusy",)).get("rejectIfBusy", "false")
    if value not in ("true", "false"):
        raise RequestError(f"`rejectIfBusy` is '{value[:40]}': use true or false", param="rejectIfBusy")
    return value == "true"
