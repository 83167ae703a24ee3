"""Routes about the server itself: models, health, version, metrics."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.models import HealthReport, ModelCard, ModelList, ModelQuery, VersionReport
from firelane.api.paging import read_query
from firelane.gateway.http.exchange import RETRY_SOON, Doc, Exchange, Route
from firelane.gateway.requests.models import ModelState, ServedModel
from firelane.gateway.services import Services
from firelane.telemetry.metrics import CONTENT_TYPE


class Server:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._replies = services.replies
        self._metrics = services.metrics
        self._created = services.created
        self._version = services.version

    def routes(self) -> Iterable[Route]:
        models = Doc(summary="The served names", answer=ModelList)
        model = Doc(summary="One of the served names", answer=ModelCard)
        health = Doc(
            summary="Whether the engine serves", answer=HealthReport, unready=HealthReport, query=ModelQuery
        )
        version = Doc(summary="The version", answer=VersionReport)
        metrics = Doc(summary="Prometheus metrics", answer=str, answer_type=CONTENT_TYPE.decode())
        yield Route("GET", "/v1/models", self.models, doc=models)
        yield Route("GET", "/v1/models/{model+}", self.model, doc=model)
        yield Route("GET", "/health", self.health, public=True, doc=health)
        yield Route("GET", "/version", self.version, public=True, doc=version)
        yield Route("GET", "/metrics", self.metrics, admin=True, doc=metrics)

    def models(self, exchange: Exchange) -> None:
        tenant = exchange.request.tenant
        cards = [self._card(model, name) for model in self._models for name in model.names_for(tenant)]
        self._replies.json(exchange, ModelList(data=cards))

    def model(self, exchange: Exchange) -> None:
        name = exchange.request.params["model"]
        self._replies.json(exchange, self._card(self._models.find(name, exchange.request.tenant), name))

    def _card(self, model: ServedModel, name: str) -> ModelCard:
        return ModelCard(id=name, created=self._created, root=model.name, max_model_len=model.max_model_len)

    def health(self, exchange: Exchange) -> None:
        """Health of the model that the query names, else of the first that does not serve."""
        name = read_query(exchange.request.query, ("model",)).get("model")
        models = self._models if name is None else [self._models.named(name)]
        for model in models:
            if model.state is not ModelState.READY:
                reason = model.reason if len(self._models) == 1 else f"{model.name}: {model.reason}"
                body = HealthReport(status=model.state.value, reason=reason)
                self._replies.json(exchange, body, 503, headers=RETRY_SOON)
                return
        self._replies.send(exchange, b'{"status":"ready"}')

    def version(self, exchange: Exchange) -> None:
        self._replies.json(exchange, VersionReport(version=self._version))

    def metrics(self, exchange: Exchange) -> None:
        exchange.respond(200, self._metrics.registry.render(), content_type=CONTENT_TYPE)
