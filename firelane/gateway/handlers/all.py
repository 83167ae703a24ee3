"""All routes of a gateway."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.gateway.generate import Generator
from firelane.gateway.handlers.chat import Chat
from firelane.gateway.handlers.completions import Completions
from firelane.gateway.handlers.embeddings import Embeddings
from firelane.gateway.handlers.page import Page
from firelane.gateway.handlers.server import Server
from firelane.gateway.handlers.stats import StatsReport
from firelane.gateway.handlers.tokens import Tokens
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Route


def all_routes(parts: Parts) -> Iterable[Route]:
    generator = Generator(parts)
    yield from Completions(parts, generator).routes()
    yield from Chat(parts, generator).routes()
    yield from Tokens(parts).routes()
    yield from Embeddings(parts).routes()
    yield from Server(parts).routes()
    yield from StatsReport(parts).routes()
    yield from Page(parts).routes()
