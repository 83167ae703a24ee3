"""Paths by which vLLM pauses a model: /pause, /resume, /is_paused. New requests wait meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import msgspec

from firelane.api.models import ModelQuery
from firelane.api.stored.paging import read_query
from firelane.errors import EngineDeadError, RequestError
from firelane.gateway.http.exchange import Doc, Exchange, HttpError, Route
from firelane.gateway.requests.models import ServedModel
from firelane.gateway.services import Services

TIMEOUT_S = 60.0
"""Seconds that requests which run may take to end."""
POLL_S = 0.01
MODES = ("abort", "wait")
ABORTED = 409


class PauseReport(msgspec.Struct, frozen=True, kw_only=True):
    is_paused: bool


class PauseQuery(ModelQuery, kw_only=True):
    """mode: requests that run are ended, or waited for. wait_for_inflight_requests: true is mode `wait`.
    clear_cache changes nothing: pages are those of one version."""

    mode: str | None = None
    wait_for_inflight_requests: str | None = None
    clear_cache: str | None = None


class PauseHandler:
    def __init__(self, services: Services) -> None:
        self._models, self._control = services.models, services.control
        self._replies = services.replies

    def routes(self) -> Iterable[Route]:
        state = Doc(summary="Whether a model is paused", answer=PauseReport, query=ModelQuery)
        pause = Doc(summary="Have new requests of a model wait", answer=PauseReport, query=PauseQuery)
        resume = Doc(summary="Have requests of a model go on", answer=PauseReport, query=ModelQuery)
        yield Route("GET", "/is_paused", self.is_paused, doc=state)
        yield Route("POST", "/pause", self.pause, admin=True, doc=pause)
        yield Route("POST", "/resume", self.resume, admin=True, doc=resume)

    def is_paused(self, exchange: Exchange) -> None:
        name = read_query(exchange.request.query, ("model",)).get("model")
        self._tell(exchange, self._models.find(name, exchange.request.tenant))

    async def pause(self, exchange: Exchange) -> None:
        """Answers when no request runs any more."""
        fields = read_query(exchange.request.query, PauseQuery.__struct_fields__)
        waits = fields.get("wait_for_inflight_requests", "").lower() in ("1", "true")
        mode = fields.get("mode", "wait" if waits else MODES[0])
        if mode not in MODES:
            raise RequestError(
                f"`mode` is {mode[:40]!r}: requests that run are ended or waited for, so use abort or wait",
                param="mode",
            )
        model = self._named(fields)
        self._control.check_pause(model)
        model.pause.begin()
        await _until_quiet(model, ends=mode == "abort")
        self._tell(exchange, model)

    def resume(self, exchange: Exchange) -> None:
        model = self._named(read_query(exchange.request.query, ("model",)))
        model.pause.end()
        self._tell(exchange, model)

    def _named(self, fields: dict[str, str]) -> ServedModel:
        name = fields.get("model")
        return self._models.default if name is None else self._models.named(name)

    def _tell(self, exchange: Exchange, model: ServedModel) -> None:
        self._replies.json(exchange, PauseReport(is_paused=model.pause.is_on))


async def _until_quiet(model: ServedModel, *, ends: bool) -> None:
    """Return when no request runs: some that came before the pause may still be read. ends: end them. Raises
    EngineDeadError after TIMEOUT_S; the pause stays."""
    error = HttpError(ABORTED, "the model was paused: send it again", code="paused")
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while model.engines.in_flight or model.admission.is_busy:
                if ends:
                    model.running.abort(None, error)
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise EngineDeadError(
            f"{model.name} is paused, and requests still run after {TIMEOUT_S:g} s"
        ) from None
