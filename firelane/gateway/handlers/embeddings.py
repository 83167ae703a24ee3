"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest, EmbeddingResponse
from firelane.errors import ContextLengthError, EngineDeadError, RequestError
from firelane.gateway.admission import cache_salt
from firelane.gateway.embedding import EmbeddingJob, EmbeddingRun
from firelane.gateway.exchange import Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.prompt import LONG_TEXT_CHARS
from firelane.gateway.routes import Doc, Route
from firelane.gateway.vectors import VectorForm
from firelane.wire.frames import Pooling, Ready


class Embeddings:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._decoder: BodyDecoder[EmbeddingRequest] = BodyDecoder(EmbeddingRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Embed texts", body=EmbeddingRequest, answer=EmbeddingResponse)
        yield Route("POST", "/v1/embeddings", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        inputs, parts = request.inputs(), self._parts
        if parts.draining:
            raise EngineDeadError("the server is shutting down: try another one")
        model = parts.gate.check_model(exchange, request.model)
        link, ready = parts.router.choose()
        form, pooling = _form(request, ready), self._pooling(request)
        window = min(len(inputs), ready.max_num_seqs)
        if request.options is not None and request.options.reject_if_busy:
            parts.admission.check_free(window, ready.max_num_seqs)
        background = exchange.request.background
        ticket = parts.gate.admit(exchange, window, ready.max_num_seqs, background=background)
        try:
            prompts = await self._prompts(request, inputs, ready)
            ticket.reserve(sum(map(len, prompts)), 0)
            if exchange.gone:
                ticket.refuse()
                return
            job = EmbeddingJob(
                prompts=prompts,
                pooling=pooling,
                form=form,
                answer_model=request.model or parts.served_names[0],
                model=model,
                salt=cache_salt(exchange.request.tenant.salt, request.cache_salt),
                window=window,
            )
            EmbeddingRun(job, link, ticket, parts).start()
        except BaseException:
            ticket.refuse()
            raise

    def _pooling(self, request: EmbeddingRequest) -> Pooling:
        """What the request asks for, else what the model was trained with."""
        pooling = request.pooling or self._parts.prompts.pooling
        if pooling is None:
            raise RequestError(
                "this model pools in a way that this server does not have: name one as `pooling`, "
                "`last` or `mean`",
                param="pooling",
            )
        return pooling

    async def _prompts(
        self, request: EmbeddingRequest, inputs: list[str] | list[list[int]], ready: Ready
    ) -> list[list[int]]:
        """Token ids, cut where the request wants that. Raises ContextLengthError and RequestError."""
        if isinstance(inputs[0], str):
            special = request.add_special_tokens is not False
            prompts = await self._encode(cast(list[str], inputs), special=special)
        else:
            prompts = cast(list[list[int]], inputs)
        limit, most = ready.max_model_len, request.truncate_prompt_tokens
        if most is not None:
            keep = limit if most == -1 else most
            prompts = [ids[-keep:] for ids in prompts]
        for index, ids in enumerate(prompts):
            _check_ids(index, ids, ready)
        return prompts

    async def _encode(self, texts: list[str], *, special: bool) -> list[list[int]]:
        """Off the event loop where it takes long."""

        def encode() -> list[list[int]]:
            return [self._parts.tokenizer.encode(text, add_special_tokens=special) for text in texts]

        if sum(map(len, texts)) > LONG_TEXT_CHARS:
            return await asyncio.to_thread(encode)
        return encode()


def _form(request: EmbeddingRequest, ready: Ready) -> VectorForm:
    width = ready.embedding_width
    if request.dimensions is not None and request.dimensions > width:
        raise RequestError(
            f"`dimensions` is {request.dimensions}: this model's vectors have {width}", param="dimensions"
        )
    return VectorForm(
        dimensions=request.dimensions,
        normalize=request.normalize is not False,
        base64=request.encoding_format == "base64",
    )


def _check_ids(index: int, ids: list[int], ready: Ready) -> None:
    if not ids:
        raise RequestError(f"`input` number {index} has no tokens: give more text", param="input")
    if max(ids) >= ready.vocab_size:
        raise RequestError(
            f"`input` has token id {max(ids)}, but the vocabulary has {ready.vocab_size} entries",
            param="input",
        )
    if len(ids) > ready.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {ready.max_model_len} tokens. However, input number "
            f"{index} has {len(ids)} tokens. Please reduce the length of the input.",
            param="input",
        )
