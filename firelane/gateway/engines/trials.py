"""Trials of requests that may have killed an engine (`recovery`)."""

from __future__ import annotations

from firelane.gateway.engines.dispatcher import Dispatcher
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import PROGRESS_TOKENS


class Trials:
    """Suspects go on one at a time: the accused among them first, each with an engine that has nothing else.
    All methods belong to one event loop."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher, self._parked = dispatcher, dispatcher.parked
        self.flight: InFlight | None = None
        """The request that is on trial."""
        self._is_alone = False
        """The one that is on trial has an engine alone."""

    def try_next(self) -> None:
        """Send the next suspect, once the one before has ended or gone on past the place of its deaths."""
        parked = self._parked
        if self.flight is None and not parked.suspects and not parked.accused:
            return
        if self.flight is not None and self._is_on_trial(self.flight):
            return
        self.flight = None
        if parked.accused:
            self._try_alone(parked.accused[0])
            return
        if self._is_alone:
            self._is_alone, self._dispatcher.reserved = False, None
            self._dispatcher.send_parked()
        if parked.suspects and self._dispatcher.serving:
            self.flight = parked.suspects.popleft()
            self._dispatcher.figures.resumed += 1
            self._dispatcher.send(self.flight)

    def lost(self, link: EngineLink) -> bool:
        """An engine has died. True where it had only the request that is on trial, as far as is known."""
        if link is not self._dispatcher.reserved:
            return False
        self._dispatcher.reserved = None
        return not (link.load.is_shared and link.load.sequences > 1)

    def _try_alone(self, accused: InFlight) -> None:
        """Nothing yet while no engine can take it."""
        takers = self._dispatcher.takers(accused)
        if not takers:
            return
        self._dispatcher.reserved = link = min(takers, key=lambda one: one.in_flight)
        self._dispatcher.figures.resumed += 1
        self._dispatcher.resume(link.requests.take_back(link.in_flight))
        accused.hands_over = False
        link.requests.submit(accused)
        self._parked.accused.popleft()
        self.flight, self._is_alone = accused, True

    def _is_on_trial(self, flight: InFlight) -> bool:
        return len(flight.tokens) - flight.kept <= PROGRESS_TOKENS and self._dispatcher.holds(flight)
