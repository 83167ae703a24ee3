"""The requests in flight at one engine."""

from __future__ import annotations

import time

from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.delivery import Delivery
from firelane.gateway.engines.link.load import EngineLoad
from firelane.gateway.engines.link.outbox import Outbox
from firelane.gateway.engines.recovery.ejection import Wait
from firelane.gateway.engines.routed_engine import RoutedEngine


class EngineRequests:
    """Requests are sent, stopped and taken back here; `delivery` gives them what the engine sends. Owned by
    its link.

    A request that has left an engine never comes back to the same process: tokens still on their way from
    there cannot be taken for those of its next life.
    """

    def __init__(self, outbox: Outbox, load: EngineLoad) -> None:
        """load: is kept true."""
        self.delivery = Delivery(self.abort)
        self._outbox, self._load = outbox, load

    def __len__(self) -> int:
        return len(self.delivery.flights)

    @property
    def step_prompt_tokens(self) -> int:
        """Tokens of the prompts that the last step began."""
        return self.delivery.step_prompt_tokens

    @property
    def waits(self) -> list[Wait]:
        """Waits of requests that got their first token here in the last step."""
        return self.delivery.waits

    def count(self) -> None:
        """Call after each change of the requests in flight."""
        delivery = self.delivery
        self._load.count(len(delivery.flights), delivery.load, time.monotonic())

    def submit(self, flight: InFlight) -> None:
        """Queue a request; those of one event-loop turn travel together. Only where the engine is ready."""
        self.delivery.add(flight)
        self.count()
        self._outbox.submit(flight.continuation())

    def expect(self, flight: InFlight, source: RoutedEngine) -> None:
        """A request that another engine begins is going to come here: have its pages from there."""
        self._outbox.submit(flight.announcement(source.engine_id, source.pages_address))

    def abort(self, request_id: int) -> bool:
        """Stop a request and forget its sink. False where it is not here."""
        if not self.delivery.leave(request_id):
            return False
        self.count()
        self._outbox.abort(request_id)
        return True

    def holds(self, flight: InFlight) -> bool:
        return flight.id in self.delivery.flights

    def takes(self, flight: InFlight) -> bool:
        """Whether the engine has told the end of what it had of this request before, if anything."""
        return flight.id not in self.delivery.leaving

    def take_back(self, count: int) -> list[InFlight]:
        """The oldest requests leave this engine, to go on elsewhere."""
        flights = list(self.delivery.flights.values())[:count]
        return [flight for flight in flights if self.abort(flight.id)]

    def take_waiting(self) -> list[InFlight]:
        """Requests that the engine has not begun leave it."""
        waiting = [flight for flight in self.delivery.flights.values() if not flight.running]
        return [flight for flight in waiting if self.abort(flight.id)]

    def clear(self) -> list[InFlight]:
        """All, which are nobody's from now on: the engine is gone."""
        self._outbox.clear()
        return self.delivery.clear()
