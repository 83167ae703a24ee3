"""GET /openapi.json."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.gateway.exchange import Exchange
from firelane.gateway.forms import encode_json
from firelane.gateway.openapi import document
from firelane.gateway.parts import Parts
from firelane.gateway.routes import Doc, Route


class OpenApi:
    """routes: all of the server's, this one included by the time that somebody asks."""

    def __init__(self, parts: Parts, routes: list[Route]) -> None:
        self._parts = parts
        self._routes = routes
        self._document = b""

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="This document", answer=dict)
        yield Route("GET", "/openapi.json", self.read, public=True, doc=doc)

    def read(self, exchange: Exchange) -> None:
        if not self._document:
            self._document = encode_json(document(self._routes, self._parts.version))
        self._parts.accounting.responded(200)
        exchange.respond(200, self._document)
