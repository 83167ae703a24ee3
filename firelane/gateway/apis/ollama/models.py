"""Ollama's endpoints about models: which there are, which are in memory, what each can do. None is made
here.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Any

from firelane.api.decode import BodyDecoder
from firelane.errors import RequestError
from firelane.gateway.apis.ollama.answer import (
    OllamaDetails,
    OllamaError,
    OllamaModel,
    OllamaModels,
    OllamaRunning,
    OllamaRunningModels,
    OllamaShown,
    OllamaVersion,
    answer_as_ollama,
)
from firelane.gateway.apis.ollama.format import rfc3339
from firelane.gateway.apis.ollama.types import SHOW_HINTS, OllamaShowRequest
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.model_list import tagged
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services
from firelane.text.prompt import default_sampling

API_VERSION = "0.12.11"
"""The version of Ollama whose API these paths follow: clients compare it with what they need."""
NEVER = "9999-12-31T23:59:59Z"
"""When a model leaves memory that stays there."""
LONGEST_S = 100 * 365 * 86400.0
"""Seconds that a model may be kept. Of a longer time the end may be no date: the model stays."""
CHANGES = (
    *(("POST", "/api/push"), ("POST", "/api/create"), ("POST", "/api/copy")),
    *(("HEAD", "/api/blobs/{digest}"), ("POST", "/api/blobs/{digest}")),
)


class OllamaModelList:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._control = services.control
        self._bodies = services.bodies
        self._replies = services.replies
        self._started = rfc3339(services.created)
        self._shows: BodyDecoder[OllamaShowRequest] = BodyDecoder(OllamaShowRequest, SHOW_HINTS)

    def routes(self) -> Iterable[Route]:
        gets: tuple[tuple[str, Any, Any, str], ...] = (
            ("/api/tags", self.tags, OllamaModels, "The served names"),
            ("/api/ps", self.running, OllamaRunningModels, "The models that serve now"),
        )
        for path, handle, answer, what in gets:
            doc = Doc(summary=f"{what} (Ollama's form)", answer=answer, errors=OllamaError)
            yield Route("GET", path, handle, doc=doc, prepare=answer_as_ollama)
        version = Doc(summary="The version of Ollama's API", answer=OllamaVersion, errors=OllamaError)
        yield Route("GET", "/api/version", self.version, public=True, doc=version, prepare=answer_as_ollama)
        show = Doc(
            summary="What a model can do (Ollama's form)",
            body=OllamaShowRequest,
            answer=OllamaShown,
            errors=OllamaError,
        )
        yield Route("POST", "/api/show", self.show, doc=show, prepare=answer_as_ollama)
        change = Doc(summary="Refused: models are fixed", errors=OllamaError)
        for method, path in CHANGES:
            yield Route(method, path, self.change, doc=change, prepare=answer_as_ollama)

    def tags(self, exchange: Exchange) -> None:
        models = [
            OllamaModel(
                name=name,
                model=name,
                modified_at=self._started,
                size=0 if model.engines.ready is None else model.engines.ready.weights_bytes,
                digest=digest(model),
                details=_details(model),
            )
            for model, name in self._names(exchange)
        ]
        self._replies.json(exchange, OllamaModels(models=models))

    def running(self, exchange: Exchange) -> None:
        models = [
            OllamaRunning(
                name=name,
                model=name,
                size=ready.weights_bytes + ready.kv_bytes,
                digest=digest(model),
                details=_details(model),
                expires_at=self._expiry(model),
                context_length=ready.max_model_len,
            )
            for model, name in self._names(exchange)
            if (ready := model.engines.ready) is not None and model.engines.serving
        ]
        self._replies.json(exchange, OllamaRunningModels(models=models))

    def _expiry(self, model: ServedModel) -> str:
        keep_s = self._control.keep_s(model)
        return NEVER if keep_s is None or keep_s > LONGEST_S else rfc3339(time.time() + keep_s)

    def version(self, exchange: Exchange) -> None:
        self._replies.json(exchange, OllamaVersion(version=API_VERSION))

    async def show(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._shows)
        model = self._models.find_tagged(request.model or request.name or "", exchange.request.tenant)
        template = model.prompts.template
        answer = OllamaShown(
            parameters=_parameters(model),
            template="" if template is None else template.source,
            details=_details(model),
            model_info=_info(model),
            capabilities=_capabilities(model),
            modified_at=self._started,
        )
        self._replies.json(exchange, answer)

    def change(self, exchange: Exchange) -> None:
        """Raises RequestError."""
        exchange.request.body = b""
        raise RequestError(
            "the models of this server are fixed when it starts: see /api/tags for those that it serves",
            code="models_fixed",
        )

    def _names(self, exchange: Exchange) -> list[tuple[ServedModel, str]]:
        tenant = exchange.request.tenant
        return [(model, tagged(name)) for model in self._models for name in model.names_for(tenant)]


def digest(model: ServedModel) -> str:
    return hashlib.sha256(f"{model.name}\0{model.version}".encode()).hexdigest()


def _details(model: ServedModel) -> OllamaDetails:
    family = "" if model.text is None else model.prompts.files.model_type
    return OllamaDetails(family=family, families=[family] if family else [])


def _capabilities(model: ServedModel) -> list[str]:
    """A model without a head embeds, and writes nothing; until its first engine is ready one is assumed."""
    sizes = model.engines.figures.sizes
    writes = sizes is None or sizes.can_generate
    if not writes:
        return ["embedding"]
    fills = ("insert",) if model.prompts.fills_gaps else ()
    sees = ("vision",) if sizes is not None and sizes.images is not None else ()
    return ["completion", *fills, *sees, *model.assistant.abilities, "embedding"]


def _parameters(model: ServedModel) -> str:
    """The values that hold for Ollama's requests which name none, in Ollama's names."""
    values = default_sampling(model.prompts.files.defaults, "llama.cpp")
    names = {"repetition_penalty": "repeat_penalty"}
    return "\n".join(f"{names.get(name, name)} {value:g}" for name, value in values.items())


def _info(model: ServedModel) -> dict[str, Any]:
    """In Ollama's names; some wait until an engine is ready."""
    kind, ready = model.prompts.files.model_type or "unknown", model.engines.ready
    info: dict[str, Any] = {"general.architecture": kind, "general.basename": model.name}
    if ready is not None:
        info |= {
            f"{kind}.context_length": ready.max_model_len,
            f"{kind}.embedding_length": ready.embedding_width,
            f"{kind}.vocab_size": ready.vocab_size,
        }
    return info
