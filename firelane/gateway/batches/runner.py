"""Starts lines of batches where the engine has idle seats, the tenants in turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

import msgspec

from firelane.api.decode import BodyDecoder
from firelane.api.stored.batches import InputLine
from firelane.errors import FirelaneError, RequestError
from firelane.gateway.batches.item_exchange import ItemAnswer, ItemExchange
from firelane.gateway.batches.job import BatchItem, BatchJob
from firelane.gateway.http.exchange import Exchange
from firelane.gateway.requests.model_list import Models
from firelane.gateway.requests.models import ModelState, ServedModel
from firelane.gateway.tenants.tenant import Tenant

log = logging.getLogger(__name__)
TICK_S = 0.05
"""Seconds between two looks for idle seats while there is work for them."""
LINES_PER_TURN = 2
"""Lines that start before other work has its turn on the event loop: each is rendered and tokenised there."""
MAX_QUEUE = 8
"""The engine's own queue: where it is longer, seats are not what is short."""


def idle_capacity(model: ServedModel, in_flight: int) -> int:
    """Number of further sequences that would find a seat in the engine's batch that nobody else wants.
    in_flight: lines of batches that were started and have no answer.
    """
    engines, ready = model.engines, model.engines.ready
    if model.state is not ModelState.READY or ready is None:
        return 0
    if engines.in_flight and engines.figures.stats.waiting > MAX_QUEUE:  # an idle engine's figures are old
        return 0
    taken = model.admission.held + max(model.admission.background, in_flight)
    return ready.max_num_seqs - taken


class _ModelField(msgspec.Struct):
    """The part of a line that names its model."""

    model: str | None = None


_MODELS: BodyDecoder[_ModelField] = BodyDecoder(_ModelField)


class BatchRunner:
    """Lives from `work` to its cancelling. Runs are added and removed at any time."""

    def __init__(
        self,
        models: Models,
        dispatch: Callable[[Exchange], None],
        tenant_of: Callable[[str], Tenant | None],
        now_s: Callable[[], float],
    ) -> None:
        """tenant_of: by name, None for one that the server does not know (any more)."""
        self._models = models
        self._dispatch = dispatch
        self._tenant_of = tenant_of
        self._now_s = now_s
        self._jobs: list[BatchJob] = []
        self._wake = asyncio.Event()

    def add(self, job: BatchJob) -> None:
        self._jobs.append(job)
        self._wake.set()

    def remove(self, job: BatchJob) -> None:
        """Its lines under way are broken off."""
        self._jobs.remove(job)
        job.discard_items()

    async def work(self) -> None:
        while True:
            try:
                started = self._start_items()
            except Exception:  # a defect under one line must not hold up all batches for good
                log.exception("batch_line_not_started")
                started = 0
            if started:
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if self._jobs else None):
                    await self._wake.wait()

    def _start_items(self) -> int:
        """Start items where there is room; returns how many."""
        started = 0
        for _ in range(len(self._jobs)):
            if started == LINES_PER_TURN or not any(map(self._is_idle, self._models)):
                break
            job = self._jobs.pop(0)
            self._jobs.append(job)  # to the end: each has its turn
            started += self._start_item(job)
        return started

    def _is_idle(self, model: ServedModel) -> bool:
        return idle_capacity(model, sum(job.in_flight_of(model) for job in self._jobs)) > 0

    def _start_item(self, job: BatchJob) -> bool:
        tenant = self._tenant_of(job.tenant)
        item = None if tenant is None else job.take(self._now_s())
        if tenant is None or item is None:
            return False
        try:
            request = job.read(item)
        except (OSError, FirelaneError):
            log.exception("batch_line_unreadable")
            job.put_back(item)
            return False
        model = self._model_of(request, tenant)
        if model is not None and not self._is_idle(model):
            job.put_back(item)
            return False
        item.model = model
        item.exchange = ItemExchange(request, tenant, partial(self._answered, job, item))
        self._dispatch(item.exchange)
        return True

    def _model_of(self, request: InputLine, tenant: Tenant) -> ServedModel | None:
        """None: it will be refused."""
        try:
            return self._models.find(_MODELS.decode(bytes(request.body)).model, tenant)
        except RequestError:
            return None

    def _answered(self, job: BatchJob, item: BatchItem, answer: ItemAnswer) -> None:
        job.answered(item, answer, self._now_s())
        self._wake.set()
