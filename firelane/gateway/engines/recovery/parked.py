"""Requests that have lost their engine: those that have no other one yet, and clients that wait for news."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from firelane.errors import DeadlineError, EngineDeadError, QueueTimeoutError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.recovery.recovery import PROGRESS_TOKENS

log = logging.getLogger(__name__)
TICK_S = 2.5
"""Between two looks at the requests that have lost their engine, and two signs of life to their clients."""


class Engines(Protocol):
    """The engines to which parked requests go."""

    @property
    def serves(self) -> bool: ...
    def holds(self, flight: InFlight) -> bool:
        """Whether one of them has the request."""
        ...

    def send_again(self, flight: InFlight) -> None:
        """Send the request to one of them."""
        ...

    def send_alone(self, flight: InFlight) -> bool:
        """Send the request to one of them, which gets nothing else until `share_again`. False where there is
        none that can take it yet."""
        ...

    def share_again(self) -> None:
        """There is no request any more that has an engine alone."""
        ...


class ParkedRequests:
    """Requests without an engine, and suspects of having killed one, who go on one at a time (`recovery`):
    the accused among them first, at engines of their own. Clients get a sign of life until tokens come again.
    All methods belong to one event loop."""

    def __init__(self, engines: Engines, parked_s: float) -> None:
        """parked_s: how long a request may be without an engine."""
        self._engines, self.parked_s = engines, parked_s
        self._parked: dict[int, InFlight] = {}
        self._suspects: deque[InFlight] = deque()
        self._accused: deque[InFlight] = deque()
        self.on_trial: InFlight | None = None
        self.has_engine_alone = False
        """The one that is on trial."""
        self._unheard: dict[int, InFlight] = {}  # resumed or parked, without a token since
        self._ticker: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._parked) + len(self._suspects) + len(self._accused)

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
        """They go on one after the other, each once the one before has ended or gone on."""
        for flight in flights:
            flight.parked_s = time.monotonic()
        self._suspects.extend(flights)
        self.listen(flights)

    def accuse(self, flights: list[InFlight]) -> None:
        """They go on one after the other, before all other suspects, and each alone with an engine."""
        for flight in flights:
            flight.parked_s = time.monotonic()
        self._accused.extend(flights)
        self.listen(flights)

    def remove(self, request_id: int) -> None:
        if self._parked.pop(request_id, None) is None:
            self._suspects = deque(flight for flight in self._suspects if flight.id != request_id)
            self._accused = deque(flight for flight in self._accused if flight.id != request_id)

    def take(self) -> Iterable[InFlight]:
        """All but the suspects, the most urgent first; the caller sends them."""
        parked, self._parked = self._parked, {}
        return sorted(parked.values(), key=lambda flight: (flight.request.priority, flight.due_s))

    def try_next(self) -> None:
        """Send the next suspect, once the one before has ended or gone on past the place of its deaths."""
        if self.on_trial is None and not self._suspects and not self._accused:
            return
        if self.on_trial is not None and self._is_on_trial(self.on_trial):
            return
        self.on_trial = None
        if self._accused:
            self._try_alone()
            return
        if self.has_engine_alone:
            self.has_engine_alone = False
            self._engines.share_again()
        if self._suspects and self._engines.serves:
            self.on_trial = self._suspects.popleft()
            self._engines.send_again(self.on_trial)

    def _try_alone(self) -> None:
        accused = self._accused[0]
        if self._engines.send_alone(accused):
            self._accused.popleft()
            self.on_trial, self.has_engine_alone = accused, True

    def listen(self, flights: Iterable[InFlight]) -> None:
        """Their clients get a sign of life until tokens come."""
        for flight in flights:
            flight.resumed_at = len(flight.tokens)
            self._unheard[flight.id] = flight
        if self._unheard and self._ticker is None and not self._closed:
            self._ticker = asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def fail(self, reason: str) -> None:
        waiting = [*self._parked.values(), *self._suspects, *self._accused]
        self._parked.clear()
        self._suspects.clear()
        self._accused.clear()
        for flight in waiting:
            flight.fail(EngineDeadError(f"the request lost its engine: {reason}"))

    def close(self) -> None:
        self._closed = True
        self.fail("the gateway is closing")
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None

    def _is_on_trial(self, flight: InFlight) -> bool:
        return len(flight.tokens) - flight.kept <= PROGRESS_TOKENS and self._engines.holds(flight)

    def _is_unheard(self, flight: InFlight) -> bool:
        if flight.id in self._parked or flight in self._suspects or flight in self._accused:
            return True
        return len(flight.tokens) == flight.resumed_at and self._engines.holds(flight)

    def _tick(self) -> None:
        self._ticker = None
        now_s = time.monotonic()
        for flight in [*self._parked.values(), *self._suspects, *self._accused]:
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
