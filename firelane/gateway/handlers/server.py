"""What a server says of itself: models, health, version, metrics."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from firelane.api.models import HealthReport, ModelCard, ModelList, VersionReport
from firelane.gateway.engine_link import LinkState
from firelane.gateway.exchange import RETRY_SOON, Exchange
from firelane.gateway.parts import Parts
from firelane.gateway.router import describe
from firelane.gateway.routes import Doc, Route
from firelane.telemetry.metrics import CONTENT_TYPE


class Server:
    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def routes(self) -> Iterable[Route]:
        models = Doc(summary="The served names", answer=ModelList)
        model = Doc(summary="One of the served names", answer=ModelCard)
        health = Doc(summary="Whether the engine serves", answer=HealthReport, errors=HealthReport)
        version = Doc(summary="The version", answer=VersionReport)
        metrics = Doc(summary="Prometheus metrics", answer=str, answer_type=CONTENT_TYPE.decode())
        yield Route("GET", "/v1/models", self.models, doc=models)
        yield Route("GET", "/v1/models/{model+}", self.model, doc=model)
        yield Route("GET", "/health", self.health, public=True, doc=health)
        yield Route("GET", "/version", self.version, public=True, doc=version)
        yield Route("GET", "/metrics", self.metrics, admin=True, doc=metrics)

    def models(self, exchange: Exchange) -> None:
        parts, may_use = self._parts, exchange.request.tenant.may_use
        names = [*parts.served_names, *parts.aliases]
        cards = [self._card(n) for n in names if may_use(n) or may_use(parts.aliases.get(n, n))]
        self._reply(exchange, 200, msgspec.json.encode(ModelList(data=cards)))

    def model(self, exchange: Exchange) -> None:
        name = exchange.request.params["model"]
        self._parts.gate.check_model(exchange, name)
        self._reply(exchange, 200, msgspec.json.encode(self._card(name)))

    def _card(self, name: str) -> ModelCard:
        parts = self._parts
        root = parts.served_names[0]
        return ModelCard(id=name, created=parts.created, root=root, max_model_len=parts.max_model_len)

    def health(self, exchange: Exchange) -> None:
        link, draining = self._parts.link, self._parts.draining
        if link.state is LinkState.READY and not draining:
            self._reply(exchange, 200, b'{"status":"ready"}')
            return
        state = "draining" if draining else link.state.value
        body = HealthReport(status=state, reason="shutting down" if draining else describe(link))
        self._reply(exchange, 503, msgspec.json.encode(body), RETRY_SOON)

    def version(self, exchange: Exchange) -> None:
        self._reply(exchange, 200, msgspec.json.encode(VersionReport(version=self._parts.version)))

    def metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._parts.accounting.registry.render(), content_type=CONTENT_TYPE)

    def _reply(self, exchange: Exchange, status: int, body: bytes, headers: bytes = b"") -> None:
        self._parts.accounting.responded(status)
        exchange.respond(status, body, headers=headers)
