"""Paths by which vLLM is steered and watched: /load, /sleep, /wake_up, /is_sleeping, /reset_prefix_cache."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

import msgspec
from msgspec import Meta

from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.engine_state import LinkState
from firelane.errors import RequestError
from firelane.gateway.engines.forgetting import forget_all
from firelane.gateway.http.exchange import Doc, Exchange, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services

TIMEOUT_S = 60.0
"""Seconds that running requests may take to end, the model to come, or engines to answer."""
MODES = ("wait", "keep")


class ServerLoad(msgspec.Struct, frozen=True, kw_only=True):
    """server_load: requests of all models that have been admitted and have not ended."""

    server_load: int


class SleepReport(msgspec.Struct, frozen=True, kw_only=True):
    is_sleeping: bool


class SleepQuery(ModelQuery, kw_only=True):
    """level: 1 keeps weights in host memory, 2 drops them. mode: requests that run are waited for."""

    level: Annotated[int, Meta(ge=1, le=2)] = 1
    mode: str | None = None


class WakeQuery(ModelQuery, kw_only=True):
    """tags: parts that are to come; all of them come, whatever it says."""

    tags: str | None = None


class ResetQuery(msgspec.Struct, kw_only=True):
    """Both change nothing: pages that running requests use go when these end, and all tiers are emptied."""

    reset_running_requests: str | None = None
    reset_external: str | None = None


class CacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """pages: that were erased, counted in each place where they were."""

    pages: int


class VllmHandler:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._models = services.models
        self._replies = services.replies

    def routes(self) -> Iterable[Route]:
        load = Doc(summary="Requests that are in the server", answer=ServerLoad)
        asleep = Doc(summary="Whether a model is in standby", answer=SleepReport, query=ModelQuery)
        sleep = Doc(summary="Put a model to standby (vLLM's form)", answer=SleepReport, query=SleepQuery)
        wake = Doc(summary="Have a model come back (vLLM's form)", answer=SleepReport, query=WakeQuery)
        reset = Doc(summary="Erase all cached prefixes", answer=CacheReset, query=ResetQuery)
        yield Route("GET", "/load", self.load, doc=load)
        yield Route("GET", "/is_sleeping", self.is_sleeping, doc=asleep)
        yield Route("POST", "/sleep", self.sleep, admin=True, doc=sleep)
        yield Route("POST", "/wake_up", self.wake_up, admin=True, doc=wake)
        yield Route("POST", "/reset_prefix_cache", self.reset, admin=True, doc=reset)

    async def load(self, exchange: Exchange) -> None:
        await self._services.refresh()
        self._replies.json(exchange, ServerLoad(server_load=sum(one.admission.held for one in self._models)))

    def is_sleeping(self, exchange: Exchange) -> None:
        name = read_query(exchange.request.query, ("model",)).get("model")
        self._tell(exchange, self._models.find(name, exchange.request.tenant))

    async def sleep(self, exchange: Exchange) -> None:
        fields = read_query(exchange.request.query, ("model", "level", "mode"))
        level, mode = fields.get("level", "1"), fields.get("mode", MODES[0])
        if level not in ("1", "2"):
            raise RequestError(f"`level` is {level[:40]!r}: use 1 or 2", param="level")
        if mode not in MODES:
            raise RequestError(
                f"`mode` is {mode[:40]!r}: requests are waited for, so use {' or '.join(MODES)}", param="mode"
            )
        model = self._named(fields)
        control = self._services.control
        await (control.sleep if level == "1" else control.unload)(model, TIMEOUT_S)
        self._tell(exchange, model)

    async def wake_up(self, exchange: Exchange) -> None:
        model = self._named(read_query(exchange.request.query, ("model", "tags")))
        await self._services.control.load(model, TIMEOUT_S)
        self._tell(exchange, model)

    async def reset(self, exchange: Exchange) -> None:
        read_query(exchange.request.query, ResetQuery.__struct_fields__)
        pages = await forget_all(self._services.engines(), self._services.tenants.names(), TIMEOUT_S)
        self._replies.json(exchange, CacheReset(pages=pages))

    def _named(self, fields: dict[str, str]) -> ServedModel:
        name = fields.get("model")
        return self._models.default if name is None else self._models.named(name)

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        asleep = model.engines.state is LinkState.STANDBY or model.status in ("standby", "sleeping")
        self._replies.json(exchange, SleepReport(is_sleeping=asleep))
