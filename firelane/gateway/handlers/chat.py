"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from firelane.api.chat import ChatRequest
from firelane.api.chat_answer import ChatResponse
from firelane.api.decode import BodyDecoder
from firelane.gateway.chat_form import ChatForm
from firelane.gateway.exchange import Exchange
from firelane.gateway.generate import Generator, Job, new_identity, output_options
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Doc, Route


class Chat:
    def __init__(self, parts: Parts, generator: Generator) -> None:
        self._parts = parts
        self._generator = generator
        self._decoder: BodyDecoder[ChatRequest] = BodyDecoder(ChatRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Answer a conversation", body=ChatRequest, answer=ChatResponse, stream=True)
        yield Route("POST", "/v1/chat/completions", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        parts = self._parts
        turn = parts.assistant.chat(request)
        identity = new_identity("chatcmpl-", request, parts)
        options = output_options(request, logprobs=bool(request.logprobs), kept_ids=turn.kept_ids)
        job = Job(
            exchange=exchange,
            fields=request,
            form=ChatForm(identity, parts.tokenizer),
            options=replace(options, live_usage=identity.live_usage),
            prompts=turn.prompts,
            splitter=turn.splitter,
            grammar=turn.grammar,
            reports=(
                request.top_logprobs or 0 if request.logprobs else -1,
                -1 if request.prompt_logprobs is None else request.prompt_logprobs,
            ),
        )
        await self._generator.start(job)
