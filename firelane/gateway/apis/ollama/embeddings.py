"""/api/embed and /api/embeddings: Ollama's API."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import MAX_INPUTS
from firelane.api.node import keep_seconds
from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.embedding import EmbeddingAsk, embed
from firelane.gateway.apis.embeddings.vectors import VectorFormat, check_dimensions
from firelane.gateway.apis.ollama.answer import (
    OllamaEmbedAnswer,
    OllamaEmbeddingsAnswer,
    OllamaError,
    answer_as_ollama,
)
from firelane.gateway.apis.ollama.format import durations
from firelane.gateway.apis.ollama.types import OllamaEmbeddingsRequest, OllamaEmbedRequest
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.model_list import Models
from firelane.gateway.services import Replies
from firelane.telemetry.traces import RequestTimes

NO_VECTORS = b'"embeddings":[]'


class OllamaEmbeddings:
    def __init__(self, models: Models, bodies: Bodies, replies: Replies) -> None:
        self._models = models
        self._bodies = bodies
        self._replies = replies
        self._many: BodyDecoder[OllamaEmbedRequest] = BodyDecoder(OllamaEmbedRequest)
        self._one: BodyDecoder[OllamaEmbeddingsRequest] = BodyDecoder(OllamaEmbeddingsRequest)

    def routes(self) -> Iterable[Route]:
        many = Doc(
            summary="Embed texts (Ollama's form)",
            body=OllamaEmbedRequest,
            answer=OllamaEmbedAnswer,
            errors=OllamaError,
        )
        one = Doc(
            summary="Embed a text (Ollama's older form)",
            body=OllamaEmbeddingsRequest,
            answer=OllamaEmbeddingsAnswer,
            errors=OllamaError,
        )
        yield Route("POST", "/api/embed", self.embed, doc=many, prepare=answer_as_ollama)
        yield Route("POST", "/api/embeddings", self.embed_one, doc=one, prepare=answer_as_ollama)

    async def embed(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._many)
        self._note(exchange, request)
        model = self._models.find_tagged(request.model, exchange.request.tenant)
        model = await model.until_loaded(exchange, keep_s=keep_seconds(request.keep_alive))
        ready, inputs, dimensions = model.serving(), request.inputs(), request.dimensions or None
        _check_inputs(inputs)
        check_dimensions(dimensions, ready.embedding_width)
        answer = _Vectors(VectorFormat(dimensions=dimensions), request.model, len(inputs))
        if not inputs:
            with model.reserve_text(exchange):
                self._replies.send(exchange, answer.body(0, RequestTimes(0.0, 0.0)))
            return
        keep = None if request.truncate is False else -1
        await embed(model, exchange, EmbeddingAsk(inputs=inputs, answer=answer, keep=keep, from_start=True))

    async def embed_one(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._one)
        self._note(exchange, request)
        model = self._models.find_tagged(request.model, exchange.request.tenant)
        model = await model.until_loaded(exchange, keep_s=keep_seconds(request.keep_alive))
        model.serving()
        if not request.prompt:
            with model.reserve_text(exchange):
                self._replies.json(exchange, OllamaEmbeddingsAnswer(embedding=[]))
            return
        ask = EmbeddingAsk(
            inputs=[request.prompt],
            answer=_Vector(),
            part="prompt",
            name_of=lambda _: "`prompt`",
            keep=-1,
            from_start=True,
        )
        await embed(model, exchange, ask)

    def _note(self, exchange: Exchange, request: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> None:
        """No option changes a vector."""
        if request.options is not None:
            given = [f"options.{name}" for name, value in _fields(request.options) if value is not None]
            self._bodies.ignored.note(exchange, given)


def _fields(options: msgspec.Struct) -> Iterable[tuple[str, object]]:
    return ((name, getattr(options, name)) for name in options.__struct_fields__)


def _check_inputs(inputs: list[str]) -> None:
    """Raises RequestError."""
    if len(inputs) > MAX_INPUTS:
        raise RequestError(
            f"`input` has {len(inputs)} entries: at most {MAX_INPUTS} are taken", param="input"
        )
    if "" in inputs:
        raise RequestError(
            f"`input` has an empty entry, number {inputs.index('')}: give at least one character",
            param="input",
        )


class _Vectors:
    """The VectorAnswer of /api/embed. Vectors are written when they come, not all at the end."""

    def __init__(self, format: VectorFormat, model: str, count: int) -> None:
        self._format = format
        self._model = model
        self._written = [b""] * count

    def add(self, index: int, values: bytes) -> None:
        self._written[index] = encode_json(self._format.numbers(values).tolist())

    def body(self, tokens: int, times: RequestTimes) -> bytes:
        total, load = durations(times)
        empty = OllamaEmbedAnswer(
            model=self._model,
            embeddings=[],
            total_duration=total,
            load_duration=load,
            prompt_eval_count=tokens,
        )
        return encode_json(empty).replace(NO_VECTORS, b'"embeddings":[%b]' % b",".join(self._written), 1)


class _Vector:
    """The VectorAnswer of /api/embeddings."""

    def __init__(self) -> None:
        self._numbers: list[float] = []

    def add(self, index: int, values: bytes) -> None:  # noqa: ARG002
        self._numbers = VectorFormat(normalize=False).numbers(values).tolist()

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        return encode_json(OllamaEmbeddingsAnswer(embedding=self._numbers))
