"""/admin/tenants/forget: a tenant's pages of the KV cache, erased in all engines and tiers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.tenant_pages import ForgetReport, ForgetRequest
from firelane.gateway.engines.forgetting import forget_tenant
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Services


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
