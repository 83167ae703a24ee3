"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import cast

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest, EmbeddingResponse
from firelane.errors import ContextLengthError, RequestError
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.http.routes import Doc, Route
from firelane.gateway.models import Models, ServedModel
from firelane.gateway.requests.admission import cache_salt
from firelane.gateway.requests.embedding import EmbeddingJob, start_embedding
from firelane.gateway.requests.vectors import VectorFormat
from firelane.text.prompt import LONG_TEXT_CHARS
from firelane.text.tokenizer import Tokenizer
from firelane.wire.frames import Pooling, Ready


class Embeddings:
    def __init__(self, models: Models) -> None:
        self._models = models
        self._decoder: BodyDecoder[EmbeddingRequest] = BodyDecoder(EmbeddingRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Embed texts", body=EmbeddingRequest, answer=EmbeddingResponse)
        yield Route("POST", "/v1/embeddings", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = self._decoder.decode(exchange.request.body)
        request.check()
        inputs, tenant = request.inputs(), exchange.request.tenant
        model = self._models.find(request.model, tenant)
        ready = model.serving()
        form, pooling = _format(request, ready), _pooling(request, model)
        window = min(len(inputs), ready.max_num_seqs)
        with model.reserve(exchange, window, request.options) as reservation:
            prompts = await _prompts(request, inputs, model)
            reservation.charge(sum(map(len, prompts)), 0)
            if exchange.gone:
                return
            job = EmbeddingJob(
                prompts=prompts,
                pooling=pooling,
                format=form,
                answer_model=request.model or model.name,
                salt=cache_salt(tenant.salt, request.cache_salt),
                window=window,
            )
            start_embedding(model, reservation, job)


def _pooling(request: EmbeddingRequest, model: ServedModel) -> Pooling:
    """The pooling that the request asks for, else the one that the model was trained with."""
    pooling = request.pooling or model.prompts.pooling
    if pooling is None:
        raise RequestError(
            "this model pools in a way that this server does not have: name one as `pooling`, "
            "`last` or `mean`",
            param="pooling",
        )
    return pooling


async def _prompts(
    request: EmbeddingRequest, inputs: list[str] | list[list[int]], model: ServedModel
) -> list[list[int]]:
    """Token ids, cut where the request wants that. Raises ContextLengthError and RequestError."""
    if isinstance(inputs[0], str):
        special = request.add_special_tokens is not False
        prompts = await _encode(model.tokenizer, cast(list[str], inputs), special=special)
    else:
        prompts = cast(list[list[int]], inputs)
    ready, most = model.serving(), request.truncate_prompt_tokens
    if most is not None:
        keep = ready.max_model_len if most == -1 else most
        prompts = [ids[-keep:] for ids in prompts]
    for index, ids in enumerate(prompts):
        _check_ids(index, ids, ready)
    return prompts


async def _encode(tokenizer: Tokenizer, texts: list[str], *, special: bool) -> list[list[int]]:
    """Off the event loop where it takes long."""

    def encode() -> list[list[int]]:
        return [tokenizer.encode(text, add_special_tokens=special) for text in texts]

    if sum(map(len, texts)) > LONG_TEXT_CHARS:
        return await asyncio.to_thread(encode)
    return encode()


def _format(request: EmbeddingRequest, ready: Ready) -> VectorFormat:
    width = ready.embedding_width
    if request.dimensions is not None and request.dimensions > width:
        raise RequestError(
            f"`dimensions` is {request.dimensions}: this model's vectors have {width}", param="dimensions"
        )
    return VectorFormat(
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
