"""The way of each request to an engine, or to those that wait for one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.joint import JointFigures
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.link.load import EngineLoad
from firelane.gateway.engines.recovery.ejection import Ejection
from firelane.gateway.engines.recovery.parked import ParkedRequests
from firelane.gateway.engines.routing.routing import Router


class Dispatcher:
    """Sends each request to the engine that the router chooses; parks it while there is none. All methods
    belong to one event loop."""

    def __init__(self, router: Router, ejection: Ejection, parked_s: float) -> None:
        """parked_s: how long a request may be without an engine."""
        self.router, self.ejection = router, ejection
        self.links: list[EngineLink] = []
        self.figures = JointFigures(self.links)
        self.parked = ParkedRequests(self.holds, parked_s)
        self.reserved: EngineLink | None = None
        """An engine that has one request alone, and gets no other one."""
        self._link_of: dict[EngineLoad, EngineLink] = {}

    def add(self, link: EngineLink) -> None:
        self.links.append(link)
        self._link_of[link.load] = link

    def remove(self, link: EngineLink) -> None:
        self.links.remove(link)
        del self._link_of[link.load]

    @property
    def serving(self) -> list[EngineLink]:
        ready = LinkState.READY
        return [link for link in self.links if link.lifecycle.state is ready]

    def takers(self, flight: InFlight) -> list[EngineLink]:
        """Engines that can take a request which they may have had before."""
        return [link for link in self._able(flight) if link.requests.takes(flight)]

    def holds(self, flight: InFlight) -> bool:
        """An engine has the request."""
        return any(link.requests.holds(flight) for link in self.links)

    def begin(self, flight: InFlight) -> None:
        """Send a request that is new."""
        self._route(flight, self._able(flight))

    def send(self, flight: InFlight) -> None:
        """Send a request that engines may have had before."""
        self._route(flight, self.takers(flight))

    def resume(self, flights: list[InFlight]) -> None:
        """Send requests that have lost their engine."""
        self.figures.resumed += len(flights)
        self.parked.listen(flights)
        for flight in flights:
            self.send(flight)

    def send_parked(self) -> None:
        """Send all that wait for an engine to serve."""
        for flight in self.parked.take():
            self.send(flight)

    def follow_pages(self, link: EngineLink) -> None:
        """Engines tell their pages once there is another one to choose. link: of one that serves now."""
        others = [other for other in self.serving if other is not link] if self.router.follows_pages else []
        for one in (link, *others) if len(others) == 1 else (link,) if others else ():
            one.commands.follow_pages()

    def _able(self, flight: InFlight) -> list[EngineLink]:
        """Engines that serve with the weights and the adapter of a request."""
        version, adapter = flight.version, flight.request.adapter
        return [link for link in self.serving if link.lifecycle.computes(version, adapter)]

    def _why_never(self, flight: InFlight) -> str:
        """The reason why no engine will take a request that none takes now; "" where one may come."""
        versions = [link.lifecycle.version for link in self.links]
        if versions and not any(version in (None, flight.version) for version in versions):
            return "the version of the model that the request began with is gone: send it again"
        serving = [link for link in self.serving if link.lifecycle.version == flight.version]
        if serving and not self._able(flight):
            return "the adapter was unloaded, or the engine that has it is gone"
        return ""

    def _route(self, flight: InFlight, serving: list[EngineLink]) -> None:
        if not serving and (why := self._why_never(flight)):
            flight.fail(EngineDeadError(why))
            return
        engines: Sequence[EngineLoad] = [link.load for link in serving if link is not self.reserved]
        if len(engines) > 1:
            engines = self.ejection.admitted(engines, time.monotonic())
        route = self.router.route(flight, engines)
        if route is not None:
            then = route.next_engine
            flight.hands_over = then is not None
            self._link_of[route.engine].requests.submit(flight)
            if then is not None:
                flight.next_engine = then.engine_id
                self._link_of[then].requests.expect(flight, route.engine)
        else:
            self.parked.add(flight)
