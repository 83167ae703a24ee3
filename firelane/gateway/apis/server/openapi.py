"""GET /openapi.json."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.gateway.apis.server.openapi_document import document
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.replies import Replies
from firelane.gateway.requests.formats import encode_json


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
