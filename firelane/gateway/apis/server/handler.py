"""Routes about the server itself: models, health, version, metrics."""

from __future__ import annotations

import time
from collections.abc import Iterable

from firelane.api.models import HealthReport, ModelCard, ModelList, ModelQuery, VersionReport
from firelane.api.stored.paging import PageCursor, read_query
from firelane.errors import AuthenticationError
from firelane.gateway.apis.messages.answer import ModelInfo, ModelInfoList, answer_as_anthropic
from firelane.gateway.http.exchange import Doc, Exchange, Route, retry_line
from firelane.gateway.requests.models import ModelState, ServedModel
from firelane.gateway.services import Services
from firelane.gateway.tenants.tenant import UNAUTHENTICATED, Tenant
from firelane.telemetry.metrics import CONTENT_TYPE

ANTHROPIC = b"anthropic-version"
"""Header of those who speak Anthropic's API."""
DEFAULT_MODELS, MOST_MODELS = 20, 1000


class ServerHandler:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._replies = services.replies
        self._metrics, self._refresh = services.metrics, services.refresh
        self._created, self._replaced = services.created, services.replaced
        self._version = services.version

    def routes(self) -> Iterable[Route]:
        models = Doc(summary="The served names", answer=ModelList)
        model = Doc(summary="One of the served names", answer=ModelCard)
        health = Doc(
            summary="Whether the engine serves", answer=HealthReport, unready=HealthReport, query=ModelQuery
        )
        version = Doc(summary="The version", answer=VersionReport)
        metrics = Doc(summary="Prometheus metrics", answer=str, answer_type=CONTENT_TYPE.decode())
        yield Route("GET", "/v1/models", self.models, doc=models, prepare=_answer_in_clients_form)
        yield Route("GET", "/v1/models/{model+}", self.model, doc=model, prepare=_answer_in_clients_form)
        yield Route("GET", "/health", self.health, public=True, doc=health)
        yield Route("GET", "/ping", self.health, public=True, doc=health)
        yield Route("POST", "/ping", self.health, public=True, doc=health)
        alive = Doc(summary="Whether the server answers", answer=HealthReport)
        yield Route("GET", "/livez", self.alive, public=True, doc=alive)
        yield Route("GET", "/version", self.version, public=True, doc=version)
        yield Route("GET", "/metrics", self.metrics, admin=True, doc=metrics)

    def models(self, exchange: Exchange) -> None:
        tenant = exchange.request.tenant
        known = [(model, name) for model in self._models for name in model.names_for(tenant)]
        if ANTHROPIC in exchange.request.headers:
            infos = [self._info(model, name) for model, name in known]
            self._replies.json(exchange, _page(infos, exchange.request.query))
        else:
            self._replies.json(exchange, ModelList(data=[self._card(model, name) for model, name in known]))

    def model(self, exchange: Exchange) -> None:
        name = exchange.request.params["model"]
        model = self._models.find(name, exchange.request.tenant)
        made = self._info if ANTHROPIC in exchange.request.headers else self._card
        self._replies.json(exchange, made(model, name))

    def _card(self, model: ServedModel, name: str) -> ModelCard:
        ready = model.engines.ready
        return ModelCard(
            id=name,
            created=self._created,
            root=name if model.adapter(name) else model.name,
            parent=model.name if model.adapter(name) else None,
            max_model_len=model.max_model_len,
            quantization=(ready.quantization or None) if ready else None,
        )

    def _info(self, model: ServedModel, name: str) -> ModelInfo:
        return ModelInfo(
            id=name,
            display_name=name,
            created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._created)),
            max_input_tokens=model.max_model_len,
            max_tokens=model.max_model_len,
        )

    def health(self, exchange: Exchange) -> None:
        """Health of the model that the query names, else of the first that should serve and does not: others
        come to memory when they are asked for. Who gives no key where keys are needed learns no names and no
        reasons: those may hold paths."""
        name = read_query(exchange.request.query, ("model",)).get("model")
        tenant = exchange.request.tenant
        if name is None:
            models = [model for model in self._models if not model.residence.leaves]
        elif tenant is UNAUTHENTICATED:
            raise AuthenticationError("the health of one model needs a key: Authorization: Bearer KEY")
        else:
            models = [self._models.open_named(name, tenant)]
        for model in models:
            if model.state is not ModelState.READY:
                reason = None if tenant is UNAUTHENTICATED else self._reason(model, tenant)
                body = HealthReport(status=model.state.value, reason=reason)
                self._replies.json(exchange, body, 503, headers=retry_line(model.engines.figures.left_s))
                return
        broken = self._broken(models)
        self._replies.json(exchange, HealthReport(status="ready", broken=broken or None))

    def alive(self, exchange: Exchange) -> None:
        """Its answer says all."""
        self._replies.json(exchange, HealthReport(status="alive"))

    def _reason(self, model: ServedModel, tenant: Tenant) -> str | None:
        """The reason why a model does not serve, for a tenant that may ask for it, else None."""
        if not model.open_to(tenant, model.name):
            return None
        return model.reason if len(self._models) == 1 else f"{model.name}: {model.reason}"

    def _broken(self, models: list[ServedModel]) -> dict[str, str]:
        broken = dict(self._replaced.broken)
        for model in models:
            broken |= model.engines.figures.children.broken
        return broken

    def version(self, exchange: Exchange) -> None:
        self._replies.json(exchange, VersionReport(version=self._version))

    async def metrics(self, exchange: Exchange) -> None:
        await self._refresh()
        exchange.respond(200, self._metrics.registry.render(), content_type=CONTENT_TYPE)


def _answer_in_clients_form(exchange: Exchange) -> None:
    if ANTHROPIC in exchange.request.headers:
        answer_as_anthropic(exchange)


def _page(infos: list[ModelInfo], query: bytes) -> ModelInfoList:
    """Raises RequestError."""
    fields = read_query(query, ("limit", "after_id", "before_id"))
    backwards = "before_id" in fields
    limit = PageCursor.read({**fields}, default=DEFAULT_MODELS, most=MOST_MODELS).limit
    page = PageCursor(fields.get("before_id", fields.get("after_id")), limit, newest_first=backwards)
    shown, more = page.cut(infos)
    if backwards:
        shown.reverse()
    return ModelInfoList(
        data=shown,
        has_more=more,
        first_id=shown[0].id if shown else None,
        last_id=shown[-1].id if shown else None,
    )
