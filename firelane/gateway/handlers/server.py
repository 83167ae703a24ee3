"""What a server says of itself: models, health, version, metrics."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firelane.api.models import ModelCard, ModelList
from firelane.gateway.engine_link import LinkState
from firelane.gateway.exchange import RETRY_SOON, Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.router import describe
from firelane.gateway.routes import Route
from firelane.telemetry.metrics import CONTENT_TYPE


class Server:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> Iterable[Route]:
        yield Route("GET", "/v1/models", self.models)
        yield Route("GET", "/health", self.health, public=True)
        yield Route("GET", "/version", self.version, public=True)
        yield Route("GET", "/metrics", self.metrics, admin=True)

    def models(self, exchange: Exchange) -> None:
        parts = self._parts
        cards = [
            ModelCard(
                id=name, created=parts.created, root=parts.served_names[0], max_model_len=parts.max_model_len
            )
            for name in parts.served_names
            if exchange.request.tenant.may_use(name)
        ]
        self._reply(exchange, 200, msgspec.json.encode(ModelList(data=cards)))

    def health(self, exchange: Exchange) -> None:
        link, draining = self._parts.link, self._parts.draining
        if link.state is LinkState.READY and not draining:
            self._reply(exchange, 200, b'{"status":"ready"}')
            return
        state = "draining" if draining else link.state.value
        body = {"status": state, "reason": "shutting down" if draining else describe(link)}
        self._reply(exchange, 503, msgspec.json.encode(body), RETRY_SOON)

    def version(self, exchange: Exchange) -> None:
        self._reply(exchange, 200, msgspec.json.encode({"version": self._parts.version}))

    def metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._parts.accounting.registry.render(), content_type=CONTENT_TYPE)

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self._parts.accounting.responded(status)
        exchange.respond(status, body, headers=headers)
