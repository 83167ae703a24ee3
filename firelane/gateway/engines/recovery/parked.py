"""Requests that have lost their engine: those that have no other one yet, and clients that wait for news."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable

from firelane.errors import DeadlineError, EngineDeadError, QueueTimeoutError
from firelane.gateway.engines.in_flight import InFlight

log = logging.getLogger(__name__)
TICK_S = 2.5
"""Between two looks at the requests that have lost their engine, and two signs of life to their clients."""


class ParkedRequests:
    """Requests without an engine: those that go to the next one that serves, and those that wait for their
    trial. Clients get a sign of life until tokens come again. All methods belong to one event loop."""

    def __init__(self, holds: Callable[[InFlight], bool], parked_s: float) -> None:
        """holds: whether an engine has the request. parked_s: how long one may be without an engine."""
        self._holds, self.parked_s = holds, parked_s
        self._parked: dict[int, InFlight] = {}
        self.suspects: deque[InFlight] = deque()
        """Requests that may have killed an engine, in the order of their trials."""
        self.accused: deque[InFlight] = deque()
        """Requests that were on trial when an engine died: they come before all suspects."""
        self._unheard: dict[int, InFlight] = {}  # resumed or parked, without a token since
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._parked) + len(self.suspects) + len(self.accused)

    @property
    def unheard(self) -> int:
        """Requests that have lost or changed their engine, and have no token since."""
        return sum(map(self._is_unheard, self._unheard.values()))

    def add(self, flight: InFlight) -> None:
        """Adds a request, which goes on as soon as an engine serves."""
        flight.parked_s = time.monotonic()
        self._parked[flight.id] = flight
        self.listen([flight])

    def suspect(self, flights: list[InFlight]) -> None:
        """They go on one after the other (Trials)."""
        for flight in flights:
            flight.parked_s = time.monotonic()
        self.suspects.extend(flights)
        self.listen(flights)

    def accuse(self, flights: list[InFlight]) -> None:
        """They go on one after the other, before all suspects, and each alone with an engine."""
        for flight in flights:
            flight.parked_s = time.monotonic()
        self.accused.extend(flights)
        self.listen(flights)

    def remove(self, request_id: int) -> None:
        if self._parked.pop(request_id, None) is None:
            self.suspects = deque(flight for flight in self.suspects if flight.id != request_id)
            self.accused = deque(flight for flight in self.accused if flight.id != request_id)

    def take(self) -> Iterable[InFlight]:
        """All but the suspects, the most urgent first; the caller sends them."""
        parked, self._parked = self._parked, {}
        return sorted(parked.values(), key=lambda flight: (flight.request.priority, flight.due_s))

    def listen(self, flights: Iterable[InFlight]) -> None:
        """Their clients get a sign of life until tokens come."""
        for flight in flights:
            flight.resumed_at = len(flight.tokens)
            self._unheard[flight.id] = flight
        if self._unheard and self._ticker is None and not self._closed:
            self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def fail(self, reason: str) -> None:
        waiting = [*self._parked.values(), *self.suspects, *self.accused]
        self._parked.clear()
        self.suspects.clear()
        self.accused.clear()
        for flight in waiting:
            flight.fail(EngineDeadError(f"the request lost its engine: {reason}"))

    def close(self) -> None:
        self._closed = True
        self.fail("the gateway is closing")
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _is_unheard(self, flight: InFlight) -> bool:
        if flight.id in self._parked or flight in self.suspects or flight in self.accused:
            return True
        return len(flight.tokens) == flight.resumed_at and self._holds(flight)

    def _tick(self) -> None:
        self._ticker = None
        now_s = time.monotonic()
        for flight in [*self._parked.values(), *self.suspects, *self.accused]:
            if now_s > flight.due_s and not flight.tokens:
                self.remove(flight.id)
                flight.fail(DeadlineError.before_start())
            elif now_s - flight.parked_s > self.parked_s:
                self.remove(flight.id)
                flight.fail(
                    QueueTimeoutError(f"no engine was there for {self.parked_s:g} s: try again later"),
                )
        unheard, self._unheard = self._unheard, {}
        still = [flight for flight in unheard.values() if self._is_unheard(flight)]
        for flight in still:
            _wave(flight)
        self.listen(still)


def _wave(flight: InFlight) -> None:
    try:
        flight.sink.on_waiting()
    except Exception:
        log.exception("request_not_told id=%d", flight.id)
