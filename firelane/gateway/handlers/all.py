"""All routes of a gateway."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.gateway.generate import Generator
from firelane.gateway.handlers.batches import Batches
from firelane.gateway.handlers.chat import Chat
from firelane.gateway.handlers.completions import Completions
from firelane.gateway.handlers.embeddings import Embeddings
from firelane.gateway.handlers.files import Files
from firelane.gateway.handlers.openapi import OpenApi
from firelane.gateway.handlers.page import Page
from firelane.gateway.handlers.responses import Responses
from firelane.gateway.handlers.server import Server
from firelane.gateway.handlers.stats import StatsReport
from firelane.gateway.handlers.tokens import Tokens
from firelane.gateway.handlers.workers_ai import WorkersAi, openai_routes
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Route


def all_routes(parts: Parts) -> Iterable[Route]:
    routes = list(_own_routes(parts))
    routes += openai_routes(routes)
    routes += OpenApi(parts, routes).routes()
    return routes


def _own_routes(parts: Parts) -> Iterable[Route]:
    generator = Generator(parts)
    yield from Completions(parts, generator).routes()
    yield from Chat(parts, generator).routes()
    yield from Responses(parts, generator).routes()
    yield from WorkersAi(parts, generator).routes()
    yield from Tokens(parts).routes()
    yield from Embeddings(parts).routes()
    yield from Files(parts).routes()
    yield from Batches(parts).routes()
    yield from Server(parts).routes()
    yield from StatsReport(parts).routes()
    yield from Page(parts).routes()
