"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import cast

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest, EmbeddingResponse
from firelane.errors import ContextLengthError, RequestError
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.admission import cache_salt
from firelane.gateway.requests.embedding import EmbeddingJob, start_embedding
from firelane.gateway.requests.models import Models, ServedModel
from firelane.gateway.requests.turn import Turn
from firelane.gateway.requests.vectors import VectorFormat
from firelane.text.encoder import pack_prompts
from firelane.text.prompt import Prompt
from firelane.wire.frames import Pooling, Ready


class Embeddings:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._decoder: BodyDecoder[EmbeddingRequest] = BodyDecoder(EmbeddingRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Embed texts", body=EmbeddingRequest, answer=EmbeddingResponse)
        yield Route("POST", "/v1/embeddings", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        inputs, tenant = request.inputs(), exchange.request.tenant
        model = await self._models.find_loaded(request.model, exchange)
        ready = model.serving()
        form, pooling = _format(request, ready), _pooling(request, model)
        window = min(len(inputs), ready.max_num_seqs)
        with model.reserve(exchange, window, request.options) as reservation:
            prompts = await _prompts(request, inputs, model, exchange)
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
            await start_embedding(model, reservation, job)


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
    request: EmbeddingRequest, inputs: list[str] | list[list[int]], model: ServedModel, exchange: Exchange
) -> list[Prompt]:
    """Cut where the request wants that. Raises ContextLengthError and RequestError."""
    ready, most = model.serving(), request.truncate_prompt_tokens
    keep = ready.max_model_len if most == -1 else most
    if isinstance(inputs[0], str):
        room = replace(model.text_room(exchange, "input"), keep=keep)
        texts, special = cast(list[str], inputs), request.add_special_tokens is not False
        found = await model.prompts.encoder.encode(texts, room, special=special)
    else:
        found = await pack_prompts(cast(list[list[int]], inputs))
    prompts = [Prompt(packed if keep is None else packed[-4 * keep :], None) for packed in found]
    turn = Turn()
    for index, prompt in enumerate(prompts):
        _check_ids(index, prompt, ready)
        await turn.take(len(prompt))
    return prompts


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


def _check_ids(index: int, prompt: Prompt, ready: Ready) -> None:
    highest = max(prompt.ids, default=-1)
    if highest < 0:
        raise RequestError(f"`input` number {index} has no tokens: give more text", param="input")
    if highest >= ready.vocab_size:
        raise RequestError(
            f"`input` has token id {highest}, but the vocabulary has {ready.vocab_size} entries",
            param="input",
        )
    if len(prompt) > ready.max_model_len:
        raise ContextLengthError(
            f"This model's maximum context length is {ready.max_model_len} tokens. However, input number "
            f"{index} has {len(prompt)} tokens. Please reduce the length of the input.",
            param="input",
        )
