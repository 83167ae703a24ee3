"""/api/pull and /api/delete: Ollama's way to have a model's files come and go. Models are those that the
server was told of: none is added here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.errors import FirelaneError, ModelNotServedError
from firelane.gateway.apis.ollama.answer import OllamaError, OllamaPulling, answer_as_ollama
from firelane.gateway.apis.ollama.models import digest
from firelane.gateway.apis.ollama.types import PULL_HINTS, OllamaDeleteRequest, OllamaPullRequest
from firelane.gateway.http.exchange import NDJSON, Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services

TELL_S = 0.25
"""Between two lines about a pull."""


class OllamaFiles:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._services = services
        self._bodies = services.bodies
        self._replies = services.replies
        self._pulls: BodyDecoder[OllamaPullRequest] = BodyDecoder(OllamaPullRequest, PULL_HINTS)
        self._deletes: BodyDecoder[OllamaDeleteRequest] = BodyDecoder(OllamaDeleteRequest)

    def routes(self) -> Iterable[Route]:
        pull = Doc(
            summary="Fetch a model's files (Ollama's form)",
            body=OllamaPullRequest,
            answer=OllamaPulling,
            stream=True,
            stream_type=NDJSON.decode(),
            errors=OllamaError,
        )
        yield Route("POST", "/api/pull", self.pull, admin=True, doc=pull, prepare=answer_as_ollama)
        delete = Doc(
            summary="Remove a model's files (Ollama's form)", body=OllamaDeleteRequest, errors=OllamaError
        )
        yield Route("DELETE", "/api/delete", self.delete, admin=True, doc=delete, prepare=answer_as_ollama)

    async def pull(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._pulls)
        model = self._find(exchange, request.model or request.name or "")
        if request.stream is False:
            await self._services.control.pull(model)
            self._replies.json(exchange, OllamaPulling(status="success"))
        else:
            await self._stream(exchange, model)

    async def delete(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._deletes)
        await self._services.control.remove(self._find(exchange, request.model or request.name or ""))
        self._replies.send(exchange, b"")

    def _find(self, exchange: Exchange, name: str) -> ServedModel:
        try:
            return self._models.find_tagged(name, exchange.request.tenant)
        except ModelNotServedError as error:
            raise ModelNotServedError(
                f"no model of this server is called {name[:200]!r}: add it to the node's file "
                '([models.NAME] with source = "..."), and have it read again (SIGHUP)',
                param="model",
                code=error.code,
            ) from None

    async def _stream(self, exchange: Exchange, model: ServedModel) -> None:
        """Lines for as long as the client listens; the pull itself goes on without one."""
        pull = asyncio.ensure_future(self._services.control.pull(model))
        exchange.start_stream(NDJSON)
        _tell(exchange, OllamaPulling(status="pulling manifest"))
        told = (0, 0)
        while not exchange.gone:
            done, _ = await asyncio.wait([pull], timeout=TELL_S)
            if (now := self._services.control.pulled(model)) != told and now[1]:
                told = now
                _tell(exchange, _downloading(model, *now))
            if done:
                break
        await self._end(exchange, pull)

    async def _end(self, exchange: Exchange, pull: asyncio.Future[None]) -> None:
        if exchange.gone:
            pull.cancel()
            return
        try:
            await pull
        except FirelaneError as error:
            exchange.send(encode_json(OllamaError(error=str(error))) + b"\n")
        else:
            _tell(exchange, OllamaPulling(status="success"))
        exchange.end()


def _downloading(model: ServedModel, done: int, total: int) -> OllamaPulling:
    name = f"sha256:{digest(model)}"
    return OllamaPulling(status="downloading", digest=name, total=total, completed=min(done, total))


def _tell(exchange: Exchange, line: OllamaPulling) -> None:
    exchange.send(encode_json(line) + b"\n")
