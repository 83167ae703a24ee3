"""/admin/models: which models are in memory, and having them come and go."""

from __future__ import annotations

from collections.abc import Iterable

from firelane.api.decode import BodyDecoder
from firelane.api.node import NodeModelReport, NodeReport, NodeRequest
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

    async def _asked(self, exchange: Exchange) -> tuple[ServedModel, NodeRequest]:
        request = await self._bodies.read(exchange, self._decoder)
        return self._models.named(request.model), request

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        (report,) = [one for one in self._control.report().models if one.name == model.name]
        self._replies.json(exchange, report)
