"""/v1/batches: create, list, describe, cancel."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.stored.batches import ENDPOINTS, Batch, BatchList, BatchListQuery, BatchRequest
from firelane.api.stored.paging import PageCursor, read_query
from firelane.gateway.batches.service import Batches
from firelane.gateway.bodies import Bodies
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.services import Replies

PATH = "/v1/batches"


class BatchHandler:
    def __init__(self, service: Batches, bodies: Bodies, replies: Replies) -> None:
        self._bodies = bodies
        self._service = service
        self._replies = replies
        self._decoder: BodyDecoder[BatchRequest] = BodyDecoder(BatchRequest)

    def routes(self) -> Iterable[Route]:
        create = Doc(summary="Run the requests of a file", body=BatchRequest, answer=Batch)
        listing = Doc(summary="List batches", answer=BatchList, query=BatchListQuery)
        one = PATH + "/{id}"
        yield Route("POST", PATH, self.create, doc=create)
        yield Route("GET", PATH, self.list_all, doc=listing)
        yield Route("GET", one, self.get, doc=Doc(summary="Describe a batch", answer=Batch))
        yield Route("POST", one + "/cancel", self.cancel, doc=Doc(summary="Cancel a batch", answer=Batch))

    async def create(self, exchange: Exchange) -> None:
        request = await self._bodies.read(exchange, self._decoder)
        self._replies.json(exchange, await self._service.create(exchange.request.tenant.name, request))

    def list_all(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("after", "limit"))
        page = PageCursor.read(fields, default=20, most=100)
        known = self._service.records.of(exchange.request.tenant.name)
        data, more = page.cut([batch for batch in known if batch.endpoint in ENDPOINTS])
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        self._replies.json(exchange, BatchList(data=data, first_id=first, last_id=last, has_more=more))

    def get(self, exchange: Exchange) -> None:
        tenant, batch_id = exchange.request.tenant.name, exchange.request.params["id"]
        self._replies.json(exchange, self._service.records.get(tenant, batch_id).batch)

    async def cancel(self, exchange: Exchange) -> None:
        tenant, batch_id = exchange.request.tenant.name, exchange.request.params["id"]
        self._replies.json(exchange, await self._service.cancel(tenant, batch_id))
