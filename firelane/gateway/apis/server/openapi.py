"""GET /openapi.json: the OpenAPI 3.1 document of a gateway's routes, made from the types of their JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from firelane.api import embeddings, models
from firelane.gateway.apis.embeddings import score_types as scores
from firelane.gateway.apis.ollama import types as ollama
from firelane.gateway.apis.workers_ai import types as workers_ai
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.formats import encode_json
from firelane.gateway.services import Replies

REF = "#/components/schemas/{name}"
TITLE = "Firelane"
ABOUT = (
    "LLM inference: the APIs of OpenAI, Anthropic and Ollama, the extras of vLLM, "
    "the native form of Workers AI."
)
Json = dict[str, Any]

REFUSED: dict[type[msgspec.Struct], dict[str, tuple[Any, ...]]] = {
    workers_ai.RunRequest: {"lora": (), "functions": ([],)},
    ollama.OllamaMessage: {"images": ([],)},
    embeddings.EmbeddingRequest: {
        name: refusal.neutral
        for name, refusal in embeddings.REFUSED.items()
        if isinstance(refusal.neutral, tuple)
    },
    scores.ScoreRequest: dict.fromkeys(scores.REFUSED, ()),
    scores.RerankRequest: dict.fromkeys(scores.REFUSED, ()),
    models.TokenizeRequest: {"chat_template": (), "mm_processor_kwargs": ()},
}
"""Fields of requests whose types allow anything but whose checks allow only null and these values."""


class OpenApiHandler:
    """routes: all of the server's, this one included by the time that somebody asks."""

    def __init__(self, routes: list[Route], version: str, replies: Replies) -> None:
        self._version = version
        self._replies = replies
        self._routes = routes
        self._document = b""

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="This document", answer=dict)
        yield Route("GET", "/openapi.json", self.read, public=True, doc=doc)

    def read(self, exchange: Exchange) -> None:
        if not self._document:
            self._document = encode_json(document(self._routes, self._version))
        self._replies.send(exchange, self._document)


def document(routes: Iterable[Route], version: str) -> Json:
    """Every route is in it; one without a `doc` says only that it exists."""
    routes = list(routes)
    schemas, components = _schemas(routes)
    paths: dict[str, Json] = {}
    taken: set[str] = set()
    for route in routes:
        operation = _operation(route, route.doc or Doc(summary=""), schemas)
        operation["operationId"] = _operation_id(route, taken)
        paths.setdefault(_path(route), {})[route.method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": TITLE, "version": version, "description": ABOUT},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _schemas(routes: list[Route]) -> tuple[dict[Any, Json], dict[str, Json]]:
    """Schema of each type that a route names, and what they refer to."""
    docs = [route.doc for route in routes if route.doc is not None]
    kinds = [kind for doc in docs for kind in (doc.body, doc.answer, doc.errors, doc.unready)]
    types = [kind for kind in kinds if kind is not None]
    unique = list({id(kind): kind for kind in types}.values())
    made, components = msgspec.json.schema_components(unique, ref_template=REF)
    for kind, fields in REFUSED.items():
        if kind.__name__ in components:
            properties = components[kind.__name__]["properties"]
            for field, neutral in fields.items():
                assert field in properties, f"{kind.__name__} has no field {field}"
                properties[field] = {"enum": [None, *neutral]}
    return {id(kind): schema for kind, schema in zip(unique, made, strict=True)}, components


def _operation(route: Route, doc: Doc, schemas: dict[Any, Json]) -> Json:
    operation: Json = {"summary": doc.summary}
    parameters = [*_path_parameters(route), *_query_parameters(doc)]
    if parameters:
        operation["parameters"] = parameters
    if doc.body is not None or doc.body_type != "application/json":
        schema = schemas[id(doc.body)] if doc.body is not None else {}
        operation["requestBody"] = {"required": True, "content": {doc.body_type: {"schema": schema}}}
    operation["responses"] = _responses(doc, schemas)
    if not route.public:
        operation["security"] = [{"key": []}, {}]  # an open server asks for none
    return operation


def _responses(doc: Doc, schemas: dict[Any, Json]) -> Json:
    content: Json = {}
    if doc.answer is not None:
        content[doc.answer_type] = {"schema": schemas[id(doc.answer)]}
    elif doc.answer_type != "application/json":
        content[doc.answer_type] = {}
    if doc.stream:
        content[doc.stream_type] = {}
    ok: Json = {"description": "Done"}
    if content:
        ok["content"] = content
    error = {"application/json": {"schema": schemas.get(id(doc.errors), {})}}
    unready = error if doc.unready is None else {"application/json": {"schema": schemas[id(doc.unready)]}}
    return {
        "200": ok,
        "4XX": {"description": "The request cannot be served", "content": error},
        "503": {"description": "The engine does not serve now", "content": unready},
    }


def _path(route: Route) -> str:
    return route.pattern.replace("+}", "}")


def _path_parameters(route: Route) -> list[Json]:
    names = [part.strip("{}+") for part in route.pattern.split("/") if part.startswith("{")]
    text = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": text} for name in names]


def _query_parameters(doc: Doc) -> list[Json]:
    if doc.query is None:
        return []
    _, components = msgspec.json.schema_components([doc.query], ref_template=REF)
    schema = components[doc.query.__name__]
    needed = schema.get("required", [])
    return [
        {"name": name, "in": "query", "required": name in needed, "schema": field}
        for name, field in schema["properties"].items()
    ]


def _operation_id(route: Route, taken: set[str]) -> str:
    """The handler's name, with a number where several routes share it."""
    name = getattr(route.handle, "__qualname__", route.pattern).replace(".", "_")
    count = 1
    while (chosen := name if count == 1 else f"{name}_{count}") in taken:
        count += 1
    taken.add(chosen)
    return chosen
