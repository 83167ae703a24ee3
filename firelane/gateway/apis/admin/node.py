"""Paths below /admin: which models are in memory, and having them come and go; engines of a model and
their roles; a tenant's pages of the KV cache, erased in all engines and tiers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from firelane.api.decode import BodyDecoder
from firelane.api.models import ModelQuery
from firelane.api.node import (
    EngineReport,
    EnginesReport,
    ForgetReport,
    ForgetRequest,
    NodeModelReport,
    NodeReport,
    NodeRequest,
    RoleRequest,
    UpdateReport,
    UpdateRequest,
)
from firelane.api.stored.paging import read_query
from firelane.gateway.engines.forgetting import forget_tenant
from firelane.gateway.engines.roles.roles import change_role
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services


class NodeHandler:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._control = services.control
        self._bodies = services.bodies
        self._replies = services.replies
        self._decoder: BodyDecoder[NodeRequest] = BodyDecoder(NodeRequest)
        self._updates: BodyDecoder[UpdateRequest] = BodyDecoder(UpdateRequest)

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="States of all models, and their memory", answer=NodeReport)
        yield Route("GET", "/admin/models", self.report, admin=True, doc=doc)
        for path, handle, what in (
            ("load", self.load, "Have a model ready"),
            ("wake", self.load, "Have a model come back from standby"),
            ("sleep", self.sleep, "Put a model to standby"),
            ("unload", self.unload, "End a model's engines"),
            ("pull", self.pull, "Fetch a model's files"),
            ("remove", self.remove, "Remove a model's files"),
        ):
            doc = Doc(summary=what, body=NodeRequest, answer=NodeModelReport)
            yield Route("POST", f"/admin/models/{path}", handle, admin=True, doc=doc)

        doc = Doc(summary="Have new requests get other weights", body=UpdateRequest, answer=UpdateReport)
        yield Route("POST", "/admin/models/{model}/update", self.update, admin=True, doc=doc)

    def report(self, exchange: Exchange) -> None:
        self._replies.json(exchange, self._control.report())

    async def load(self, exchange: Exchange) -> None:
        model, request = await self._asked(exchange)
        await self._control.load(model, request.timeout_s)
        self._tell(exchange, model)

    async def sleep(self, exchange: Exchange) -> None:
        model, request = await self._asked(exchange)
        await self._control.sleep(model, request.timeout_s)
        self._tell(exchange, model)

    async def unload(self, exchange: Exchange) -> None:
        model, request = await self._asked(exchange)
        await self._control.unload(model, request.timeout_s)
        self._tell(exchange, model)

    async def pull(self, exchange: Exchange) -> None:
        model, _ = await self._asked(exchange)
        await self._control.pull(model)
        self._tell(exchange, model)

    async def remove(self, exchange: Exchange) -> None:
        model, _ = await self._asked(exchange)
        await self._control.remove(model)
        self._tell(exchange, model)

    async def update(self, exchange: Exchange) -> None:
        """The name of an adapter stands for the adapter."""
        request = await self._bodies.read(exchange, self._updates)
        name = exchange.request.params["model"]
        model = self._models.named(name)
        before = model.fingerprint
        if model.adapter(name):
            directory = Path(request.source)
            await self._control.load_adapter(model, name, directory, in_place=True)
        else:
            number = int(model.weights) if model.weights.isdecimal() else 1
            await self._control.update(
                model, request.source, request.version or str(number + 1), request.timeout_s
            )
        now = self._models.named(name)
        report = UpdateReport(
            model=name, version=now.weights, system_fingerprint=now.fingerprint, before=before
        )
        self._replies.json(exchange, report)

    async def _asked(self, exchange: Exchange) -> tuple[ServedModel, NodeRequest]:
        request = await self._bodies.read(exchange, self._decoder)
        return self._models.named(request.model), request

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        (report,) = [one for one in self._control.report().models if one.name == model.name]
        self._replies.json(exchange, report)


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
            EngineReport(
                name=link.name, role=link.load.role, state=link.state.value, requests=link.load.sequences
            )
            for link in model.engines.links
        ]
        self._replies.json(exchange, EnginesReport(model=model.name, engines=engines))


class TenantPageHandler:
    def __init__(self, services: Services) -> None:
        self._models = services.models
        self._bodies = services.bodies
        self._replies = services.replies
        self._decoder: BodyDecoder[ForgetRequest] = BodyDecoder(ForgetRequest)
        self._turn = asyncio.Lock()

    def routes(self) -> Iterable[Route]:
        doc = Doc(summary="Erase a tenant's cached pages", body=ForgetRequest, answer=ForgetReport)
        yield Route("POST", "/admin/tenants/forget", self.forget, admin=True, doc=doc)

    async def forget(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        engines = [model.engines for model in self._models]
        async with self._turn:
            pages, silent = await forget_tenant(engines, request.tenant, request.timeout_s)
        report = ForgetReport(tenant=request.tenant, pages=sum(pages), engines=len(pages), silent=silent)
        self._replies.json(exchange, report)
