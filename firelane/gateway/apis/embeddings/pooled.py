"""/classify and /pooling, in vLLM's form."""

from __future__ import annotations

import array
import secrets
import time
from collections.abc import Callable, Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingUsage
from firelane.gateway.apis.embeddings.class_types import (
    POOLED_HINTS,
    ClassifyResponse,
    ClassItem,
    PooledRequest,
    PoolingItem,
    PoolingRequest,
    PoolingResponse,
)
from firelane.gateway.apis.embeddings.classes import check_classes, probabilities
from firelane.gateway.apis.embeddings.embedding import EmbeddingAsk, embed
from firelane.gateway.apis.embeddings.vectors import VectorAnswer, VectorFormat, check_dimensions, swapped
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ServedModel
from firelane.telemetry.traces import RequestTimes

Numbers = Callable[[bytes], list[float]]


class PooledHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._classify: BodyDecoder[PooledRequest] = BodyDecoder(PooledRequest, POOLED_HINTS)
        self._pooling: BodyDecoder[PoolingRequest] = BodyDecoder(PoolingRequest, POOLED_HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Classify texts", body=PooledRequest, answer=ClassifyResponse)
        yield Route("POST", "/classify", self.classify, doc=doc)
        doc = Doc(summary="What a model makes of texts", body=PoolingRequest, answer=PoolingResponse)
        yield Route("POST", "/pooling", self.pooling, doc=doc)

    async def classify(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._classify)
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        files = model.prompts.files.embedding
        check_classes(files)
        inputs, name = request.inputs(), request.model or model.name
        write = _Writer(
            len(inputs), _numbers(request), lambda rows, tokens: _classes(name, files.labels, rows, tokens)
        )
        await _ask(model, exchange, request, inputs, write, scores=True)

    async def pooling(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._pooling)
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        files = model.prompts.files.embedding
        inputs, name = request.inputs(), request.model or model.name
        scores = bool(files.labels) if request.task is None else request.task == "classify"
        if scores:
            check_classes(files)
        numbers = _numbers(request) if scores else _vector(request, model)
        write = _Writer(len(inputs), numbers, lambda rows, tokens: _pooled(name, rows, tokens))
        await _ask(model, exchange, request, inputs, write, scores=scores)


class _Writer:
    """A VectorAnswer. numbers: of what the engine gives for an input. write: makes the JSON of all numbers
    and the number of tokens."""

    def __init__(
        self, count: int, numbers: Numbers, write: Callable[[list[list[float]], int], bytes]
    ) -> None:
        self._rows: list[list[float]] = [[]] * count
        self._numbers, self._write = numbers, write

    def add(self, index: int, values: bytes) -> None:
        self._rows[index] = self._numbers(values)

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        return self._write(self._rows, tokens)


async def _ask(
    model: ServedModel,
    exchange: Exchange,
    request: PooledRequest,
    inputs: list[str] | list[list[int]],
    answer: VectorAnswer,
    *,
    scores: bool,
) -> None:
    ask = EmbeddingAsk(
        inputs=inputs,
        answer=answer,
        keep=request.truncate_prompt_tokens,
        special=request.add_special_tokens is not False,
        scores=scores,
        cache_salt=request.cache_salt,
        options=request.options,
    )
    await embed(model, exchange, ask)


def _numbers(request: PooledRequest) -> Numbers:
    def numbers(values: bytes) -> list[float]:
        logits = swapped(array.array("f", values))
        return logits.tolist() if request.is_raw else probabilities(logits)

    return numbers


def _vector(request: PoolingRequest, model: ServedModel) -> Numbers:
    """Raises RequestError."""
    check_dimensions(request.dimensions, model.serving().embedding_width)
    form = VectorFormat(dimensions=request.dimensions, normalize=request.normalize is not False)
    return lambda values: form.numbers(values).tolist()


def _classes(model: str, labels: tuple[str, ...], rows: list[list[float]], tokens: int) -> bytes:
    data = [
        ClassItem(index=i, label=labels[row.index(max(row))], probs=row, num_classes=len(row))
        for i, row in enumerate(rows)
    ]
    return encode_json(
        ClassifyResponse(
            id="classify-" + secrets.token_hex(12),
            created=int(time.time()),
            model=model,
            data=data,
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
    )


def _pooled(model: str, rows: list[list[float]], tokens: int) -> bytes:
    return encode_json(
        PoolingResponse(
            id="pool-" + secrets.token_hex(12),
            created=int(time.time()),
            model=model,
            data=[PoolingItem(index=i, data=row) for i, row in enumerate(rows)],
            usage=EmbeddingUsage(prompt_tokens=tokens, total_tokens=tokens),
        )
    )
