"""All routes of a gateway."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from firelane.gateway.apis.admin.node import EngineRoleHandler, NodeHandler, TenantPageHandler
from firelane.gateway.apis.batches.batches import BatchHandler
from firelane.gateway.apis.batches.files import FileHandler
from firelane.gateway.apis.chat.handler import ChatHandler
from firelane.gateway.apis.chat.stored import StoredChatHandler
from firelane.gateway.apis.completions.handler import CompletionHandler
from firelane.gateway.apis.decisions.handler import DecisionHandler
from firelane.gateway.apis.embeddings.cohere import CohereHandler
from firelane.gateway.apis.embeddings.handler import EmbeddingHandler
from firelane.gateway.apis.embeddings.pooled import PooledHandler
from firelane.gateway.apis.embeddings.scores import ScoreHandler
from firelane.gateway.apis.llama_server.completion import NativeCompletionHandler
from firelane.gateway.apis.llama_server.server import LlamaServerHandler
from firelane.gateway.apis.messages.batches import MessageBatchHandler
from firelane.gateway.apis.messages.handler import MessagesHandler
from firelane.gateway.apis.ollama.embeddings import OllamaEmbeddings
from firelane.gateway.apis.ollama.files import OllamaFiles
from firelane.gateway.apis.ollama.handler import OllamaHandler
from firelane.gateway.apis.ollama.models import OllamaModelList
from firelane.gateway.apis.responses.conversations import ConversationHandler
from firelane.gateway.apis.responses.handler import ResponsesHandler
from firelane.gateway.apis.server.handler import ServerHandler
from firelane.gateway.apis.server.openapi import OpenApiHandler
from firelane.gateway.apis.server.page import PageHandler
from firelane.gateway.apis.server.render import RenderHandler
from firelane.gateway.apis.server.stats import StatsReport
from firelane.gateway.apis.server.tokens import TokenHandler
from firelane.gateway.apis.sglang.handler import SglangHandler
from firelane.gateway.apis.streams.handler import KeptStreamHandler
from firelane.gateway.apis.vllm.adapters import AdapterHandler
from firelane.gateway.apis.vllm.handler import VllmHandler
from firelane.gateway.apis.vllm.pause import PauseHandler
from firelane.gateway.apis.workers_ai.handler import WorkersAiHandler, openai_routes
from firelane.gateway.http.exchange import Route
from firelane.gateway.services import Services

OF_THE_SERVER = frozenset({"/health", "/ping", "/metrics", "/api/ps"})
"""Paths that tell of all processes, beside those that hold state."""


SHORT = {
    "/v1/chat/completions": ("/chat/completions",),
    "/v1/completions": ("/completions", "/beta/completions"),
    "/v1/fim/completions": ("/fim/completions",),
    "/v1/embeddings": ("/embeddings",),
    "/v1/models": ("/models",),
    "/health": ("/healthz", "/readyz", "/v1/health", "/health_generate"),
}
"""Other servers' paths that mean the same."""


def all_routes(services: Services) -> Iterable[Route]:
    routes = list(_own_routes(services))
    routes += openai_routes(routes)
    routes += [replace(route, pattern=path) for route in routes for path in SHORT.get(route.pattern, ())]
    routes += OpenApiHandler(routes, services.version, services.replies).routes()
    return routes


def _own_routes(services: Services) -> Iterable[Route]:
    models, bodies, replies = services.models, services.bodies, services.replies
    yield from CompletionHandler(models, bodies, services.streams).routes()
    yield from ChatHandler(models, bodies, services.streams, services.kept.chats).routes()
    yield from _owned(StoredChatHandler(bodies, services.kept.chats, services.streams, replies).routes())
    yield from _owned(KeptStreamHandler(services.streams, replies).routes())
    yield from MessagesHandler(models, bodies, replies, services.streams).routes()
    yield from NativeCompletionHandler(models, bodies).routes()
    yield from LlamaServerHandler(services).routes()
    yield from _owned(VllmHandler(services).routes())
    yield from _owned(AdapterHandler(services).routes())
    yield from _owned(PauseHandler(services).routes())
    yield from SglangHandler(services).routes()
    yield from OllamaHandler(models, bodies, replies).routes()
    yield from OllamaEmbeddings(models, bodies, replies).routes()
    yield from _owned(OllamaModelList(services).routes(), OF_THE_SERVER)
    yield from _owned(OllamaFiles(services).routes())
    yield from _owned(ResponsesHandler(models, bodies, services.kept, replies).routes())
    yield from _owned(ConversationHandler(bodies, services.kept.conversations, replies).routes())
    yield from WorkersAiHandler(models, bodies).routes()
    yield from TokenHandler(models, bodies, replies).routes()
    yield from RenderHandler(models, bodies, replies).routes()
    yield from EmbeddingHandler(models, bodies).routes()
    yield from ScoreHandler(models, bodies).routes()
    yield from PooledHandler(models, bodies).routes()
    yield from CohereHandler(models, bodies).routes()
    yield from DecisionHandler(models, bodies).routes()
    yield from _owned(FileHandler(services.files, replies, services.metrics).routes())
    yield from _owned(BatchHandler(services.batches, bodies, replies).routes())
    yield from _owned(MessageBatchHandler(services).routes())
    yield from _owned(ServerHandler(services).routes(), OF_THE_SERVER)
    yield from _owned(StatsReport(services).routes())
    yield from _owned(NodeHandler(services).routes())
    yield from _owned(EngineRoleHandler(services).routes())
    yield from _owned(TenantPageHandler(services).routes())
    yield from PageHandler(replies).routes()


def _owned(routes: Iterable[Route], patterns: frozenset[str] | None = None) -> Iterator[Route]:
    """Routes that one process answers for all; with `patterns` only those."""
    for route in routes:
        yield replace(route, owned=patterns is None or route.pattern in patterns)
