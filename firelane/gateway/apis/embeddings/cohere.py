"""POST /v2/embed, as Cohere has it, for texts."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import MAX_INPUTS
from firelane.api.sampling import unsupported
from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.embedding import EmbeddingAsk, embed
from firelane.gateway.apis.embeddings.vectors import VectorFormat, as_bytes, check_dimensions
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.model_list import Models
from firelane.telemetry.traces import RequestTimes

COHERE_HINTS = ("max_tokens", "priority")
REFUSED = ("images", "inputs")
CohereKind = Literal["float", "base64"]


class CohereEmbedRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """texts: one vector each. input_type: which of the model's prompts is put before each, as `search_query`
    or `search_document`. truncate: NONE refuses a text that is too long, END (the default) keeps its first
    tokens, START its last ones."""

    texts: Annotated[list[str], Meta(max_length=MAX_INPUTS)] | None = None
    model: str | None = None
    input_type: str | None = None
    embedding_types: list[CohereKind] | None = None
    truncate: Literal["NONE", "START", "END"] | None = None
    output_dimension: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None

    # Hints: see COHERE_HINTS.
    max_tokens: Any = None
    priority: Any = None

    # Refused: see REFUSED.
    images: Any = None
    inputs: Any = None

    def checked_texts(self) -> list[str]:
        """Raises RequestError."""
        if not self.texts:
            raise RequestError("`texts` is empty: give at least one text", param="texts")
        if "" in self.texts:
            raise RequestError(f"`texts` has an empty text, number {self.texts.index('')}", param="texts")
        return self.texts

    def check(self) -> None:
        """Raises RequestError."""
        for name in REFUSED:
            if getattr(self, name):
                raise unsupported(name)
        self.checked_texts()


class CohereVectors(msgspec.Struct, frozen=True, kw_only=True):
    floats: list[list[float]] | UnsetType = msgspec.field(name="float", default=UNSET)
    packed: list[str] | UnsetType = msgspec.field(name="base64", default=UNSET)


class CohereUnits(msgspec.Struct, frozen=True, kw_only=True):
    input_tokens: int


class CohereVersion(msgspec.Struct, frozen=True, kw_only=True):
    version: str = "2"


class CohereMeta(msgspec.Struct, frozen=True, kw_only=True):
    api_version: CohereVersion
    billed_units: CohereUnits


class CohereEmbedResponse(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    embeddings: CohereVectors
    texts: list[str]
    meta: CohereMeta
    response_type: Literal["embeddings_by_type"] = "embeddings_by_type"


class CohereHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._decoder: BodyDecoder[CohereEmbedRequest] = BodyDecoder(CohereEmbedRequest, COHERE_HINTS)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Embed texts (Cohere's form)", body=CohereEmbedRequest, answer=CohereEmbedResponse)
        yield Route("POST", "/v2/embed", self.embed, doc=doc)

    async def embed(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        check_dimensions(request.output_dimension, model.serving().embedding_width)
        texts = request.checked_texts()
        prompt = model.prompts.files.embedding.task_prompt(request.input_type)
        ask = EmbeddingAsk(
            inputs=[prompt + text for text in texts],
            answer=_CohereVectors(texts, request.embedding_types or ["float"], request.output_dimension),
            part="texts",
            name_of=lambda index: f"`texts` number {index}",
            keep=None if request.truncate == "NONE" else -1,
            from_start=request.truncate != "START",
        )
        await embed(model, exchange, ask)


class _CohereVectors:
    """A VectorAnswer. kinds: how each vector is written."""

    def __init__(self, texts: list[str], kinds: list[CohereKind], dimensions: int | None) -> None:
        self._texts = texts
        self._floats: list[list[float]] | UnsetType = [[]] * len(texts) if "float" in kinds else UNSET
        self._packed: list[str] | UnsetType = [""] * len(texts) if "base64" in kinds else UNSET
        self._form = VectorFormat(dimensions=dimensions)

    def add(self, index: int, values: bytes) -> None:
        numbers = self._form.numbers(values)
        if self._floats is not UNSET:
            self._floats[index] = numbers.tolist()
        if self._packed is not UNSET:
            self._packed[index] = base64.b64encode(as_bytes(numbers, "float32", "little")).decode()

    def body(self, tokens: int, times: RequestTimes) -> bytes:  # noqa: ARG002
        return encode_json(
            CohereEmbedResponse(
                id="embed-" + secrets.token_hex(12),
                embeddings=CohereVectors(floats=self._floats, packed=self._packed),
                texts=self._texts,
                meta=CohereMeta(api_version=CohereVersion(), billed_units=CohereUnits(input_tokens=tokens)),
            )
        )
