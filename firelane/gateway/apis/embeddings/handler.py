"""POST /v1/embeddings."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.embeddings import EmbeddingRequest, EmbeddingResponse
from firelane.errors import RequestError
from firelane.gateway.apis.embeddings.embedding import EmbeddingAsk, embed
from firelane.gateway.apis.embeddings.vectors import EmbeddingList, VectorFormat, check_dimensions
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.model_list import Models
from firelane.text.embedding_files import EmbeddingFiles


def prompted(
    inputs: list[str] | list[list[int]], files: EmbeddingFiles, request: EmbeddingRequest
) -> list[str] | list[list[int]]:
    """Texts behind the model's prompt that is asked for, or that it has for all. Raises RequestError for a
    prompt that the model does not have, and for one before token ids."""
    if isinstance(inputs[0], str):
        name, task = request.prompt_name, request.input_type
        prompt = files.prompt(name) if name else files.task_prompt(task or None)
        return [f"{prompt}{text}" for text in inputs] if prompt else inputs
    for field in ("prompt_name", "input_type"):
        if getattr(request, field):
            raise RequestError(f"`{field}` goes before texts: leave it out with token ids", param=field)
    return inputs


class EmbeddingHandler:
    def __init__(self, models: Models, bodies: Bodies) -> None:
        self._models = models
        self._bodies = bodies
        self._decoder: BodyDecoder[EmbeddingRequest] = BodyDecoder(EmbeddingRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Embed texts", body=EmbeddingRequest, answer=EmbeddingResponse)
        yield Route("POST", "/v1/embeddings", self.create, doc=doc)

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        inputs = request.inputs()
        model = await self._models.find_loaded(request.model, exchange)
        model.check_plain(request.model)
        check_dimensions(request.dimensions, model.serving().embedding_width)
        form = VectorFormat(
            dimensions=request.dimensions,
            normalize=request.normalize is not False,
            base64=request.encoding_format == "base64",
            kind=request.embed_dtype or "float32",
            order=request.endianness or "native",
        )
        ask = EmbeddingAsk(
            inputs=prompted(inputs, model.prompts.files.embedding, request),
            answer=EmbeddingList(form, request.model or model.name, len(inputs)),
            keep=request.truncate_prompt_tokens,
            special=request.add_special_tokens is not False,
            pooling=request.pooling,
            cache_salt=request.cache_salt,
            options=request.options,
        )
        await embed(model, exchange, ask)
