"""/admin/engines: engines of a model and their roles."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.engines import EngineReport, EnginesReport, RoleRequest
from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.gateway.engines.roles.roles import change_role
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services


class EngineRoleHandler:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._bodies = services.bodies
        self._replies = services.replies
        self._decoder: BodyDecoder[RoleRequest] = BodyDecoder(RoleRequest)

    def routes(self) -> Iterable[Route]:
        report = Doc(summary="Engines of a model, and their roles", answer=EnginesReport, query=ModelQuery)
        change = Doc(summary="Change the role of an engine", body=RoleRequest, answer=EnginesReport)
        yield Route("GET", "/admin/engines", self.report, admin=True, doc=report)
        yield Route("POST", "/admin/engines/role", self.change, admin=True, doc=change)

    def report(self, exchange: Exchange) -> None:
        self._tell(exchange, self._named(read_query(exchange.request.query, ("model",)).get("model")))

    async def change(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        model = self._named(request.model)
        change_role(model.engines, request.engine, request.role)
        self._tell(exchange, model)

    def _named(self, name: str | None) -> ServedModel:
        return self._models.default if name is None else self._models.named(name)

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        engines = [
            EngineReport(name=link.name, role=link.role, state=link.state.value, requests=link.sequences)
            for link in model.engines.links
        ]
        self._replies.json(exchange, EnginesReport(model=model.name, engines=engines))
