"""All routes of a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from firelane.gateway.apis.admin.engines import EngineRoles
from firelane.gateway.apis.admin.node import NodeModels
from firelane.gateway.apis.admin.tenant_pages import TenantPages
from firelane.gateway.apis.batches.batches import Batches
from firelane.gateway.apis.batches.files import Files
from firelane.gateway.apis.chat.handler import Chat
from firelane.gateway.apis.completions.handler import Completions
from firelane.gateway.apis.embeddings.handler import Embeddings
from firelane.gateway.apis.embeddings.scores import Scores
from firelane.gateway.apis.messages.handler import Messages
from firelane.gateway.apis.ollama.embeddings import OllamaEmbeddings
from firelane.gateway.apis.ollama.files import OllamaFiles
from firelane.gateway.apis.ollama.handler import Ollama
from firelane.gateway.apis.ollama.models import OllamaModelList
from firelane.gateway.apis.responses.conversations import Conversations
from firelane.gateway.apis.responses.handler import Responses
from firelane.gateway.apis.server.handler import Server
from firelane.gateway.apis.server.openapi import OpenApi
from firelane.gateway.apis.server.page import Page
from firelane.gateway.apis.server.render import Render
from firelane.gateway.apis.server.stats import StatsReport
from firelane.gateway.apis.server.tokens import Tokens
from firelane.gateway.apis.workers_ai.handler import WorkersAi, openai_routes
from firelane.gateway.http.exchange import Route
from firelane.gateway.services import Services

OF_THE_SERVER = frozenset({"/health", "/ping", "/metrics", "/api/ps"})
"""Paths that tell of all processes, beside those that hold state."""


def all_routes(services: Services) -> Iterable[Route]:
    routes = list(_own_routes(services))
    routes += openai_routes(routes)
    routes += OpenApi(routes, services.version, services.replies).routes()
    return routes


def _own_routes(services: Services) -> Iterable[Route]:
    models, bodies, replies = services.models, services.bodies, services.replies
    yield from Completions(models, bodies).routes()
    yield from Chat(models, bodies).routes()
    yield from Messages(models, bodies, replies).routes()
    yield from Ollama(models, bodies, replies).routes()
    yield from OllamaEmbeddings(models, bodies, replies).routes()
    yield from _owned(OllamaModelList(services).routes(), OF_THE_SERVER)
    yield from _owned(OllamaFiles(services).routes())
    yield from _owned(Responses(models, bodies, services.kept, replies).routes())
    yield from _owned(Conversations(bodies, services.kept.conversations, replies).routes())
    yield from WorkersAi(models, bodies).routes()
    yield from Tokens(models, bodies, replies).routes()
    yield from Render(models, bodies, replies).routes()
    yield from Embeddings(models, bodies).routes()
    yield from Scores(models, bodies).routes()
    yield from _owned(Files(services.files, replies, services.metrics).routes())
    yield from _owned(Batches(services.batches, bodies, replies).routes())
    yield from _owned(Server(services).routes(), OF_THE_SERVER)
    yield from _owned(StatsReport(services).routes())
    yield from _owned(NodeModels(services).routes())
    yield from _owned(EngineRoles(services).routes())
    yield from _owned(TenantPages(services).routes())
    yield from Page(replies).routes()


def _owned(routes: Iterable[Route], patterns: frozenset[str] | None = None) -> Iterator[Route]:
    """Routes that one process answers for all; with `patterns` only those."""
    for route in routes:
        yield replace(route, owned=patterns is None or route.pattern in patterns)
