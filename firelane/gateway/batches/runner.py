"""Starts lines of batches where the engine has idle seats, the tenants in turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial

from firelane.errors import FirelaneError
from firelane.gateway.admission import Admission
from firelane.gateway.batches.line import Answer, LineExchange
from firelane.gateway.batches.run import Line, Run
from firelane.gateway.engine_link import EngineLink, LinkState
from firelane.gateway.exchange import Exchange
from firelane.gateway.tenants.tenant import Tenant

log = logging.getLogger(__name__)
TICK_S = 0.05
"""How soon idle seats are seen while there is work for them."""
LINES_PER_TURN = 2
"""Lines that start before other work has its turn on the event loop: each is rendered and tokenised there."""
MAX_QUEUE = 8
"""The engine's own queue: where it is longer, seats are not what is short."""


class Seats:
    """How many more sequences would find a seat in the engine's batch that nobody else wants."""

    def __init__(self, link: EngineLink, admission: Admission) -> None:
        self._link = link
        self._admission = admission

    def free(self, in_flight: int) -> int:
        """`in_flight`: lines that were started and have no answer."""
        link, ready = self._link, self._link.ready
        if link.state is not LinkState.READY or ready is None:
            return 0
        if link.in_flight and link.stats.waiting > MAX_QUEUE:  # an idle engine's figures are old
            return 0
        taken = self._admission.held + max(self._admission.background, in_flight)
        return ready.max_num_seqs - taken


class Runner:
    """Lives from `work` to its cancelling. Runs are added and removed at any time."""

    def __init__(
        self,
        seats: Seats,
        dispatch: Callable[[Exchange], None],
        tenant_of: Callable[[str], Tenant | None],
        now_s: Callable[[], float],
    ) -> None:
        """tenant_of: by name, None for one that the server does not know (any more)."""
        self._seats = seats
        self._dispatch = dispatch
        self._tenant_of = tenant_of
        self._now_s = now_s
        self._runs: list[Run] = []
        self._wake = asyncio.Event()

    def add(self, run: Run) -> None:
        self._runs.append(run)
        self._wake.set()

    def remove(self, run: Run) -> None:
        """Its lines under way are broken off."""
        self._runs.remove(run)
        run.drop_lines()

    async def work(self) -> None:
        while True:
            try:
                started = self._start_lines()
            except Exception:  # a defect under one line must not hold up all batches for good
                log.exception("batch_line_not_started")
                started = 0
            if started:
                await asyncio.sleep(0)
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(TICK_S if self._runs else None):
                    await self._wake.wait()

    def _start_lines(self) -> int:
        """How many were started."""
        started = 0
        for _ in range(len(self._runs)):
            if started == LINES_PER_TURN or self._seats.free(sum(r.in_flight for r in self._runs)) <= 0:
                break
            run = self._runs.pop(0)
            self._runs.append(run)  # to the end: each has its turn
            started += self._start_line(run)
        return started

    def _start_line(self, run: Run) -> bool:
        tenant = self._tenant_of(run.tenant)
        line = None if tenant is None else run.take(self._now_s())
        if tenant is None or line is None:
            return False
        try:
            request = run.read(line)
        except (OSError, FirelaneError):
            log.exception("batch_line_unreadable")
            run.put_back(line)
            return False
        line.exchange = LineExchange(request, tenant, partial(self._answered, run, line))
        self._dispatch(line.exchange)
        return True

    def _answered(self, run: Run, line: Line, answer: Answer) -> None:
        run.answered(line, answer, self._now_s())
        self._wake.set()
