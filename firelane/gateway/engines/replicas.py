"""All engines of one model, as one: a request goes to the one that the routing policy chooses, and on to
another one when it loses its engine.

    submitted -> at a link -> ended
                   |  ^
           lost or |  | as soon as a link serves
          returned v  |
                 parked (here) -> failed, when its time is over

Tokens stay with the request (InFlight), so that any engine of the same identity can go on with it.
"""

from __future__ import annotations

from collections.abc import Iterable

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines import joint
from firelane.gateway.engines.dispatcher import Dispatcher
from firelane.gateway.engines.in_flight import InFlight, Sink
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.observer import ReplicaListener, ReplicaObserver
from firelane.gateway.engines.recovery.ejection import Ejection, NoEjection
from firelane.gateway.engines.recovery.recovery import NoRecovery, Recovery
from firelane.gateway.engines.routing.routing import Router
from firelane.wire.frames import NewRequest, Ready

PARKED_S = 600.0


class ReplicaSet:
    """The engines of one model. Links may be added and removed at any time. All methods belong to one event
    loop.

        dispatcher  the way of a request to an engine; the router and the ejection of slow engines
        figures     sizes, statistics and counts of all engines together
    """

    def __init__(
        self,
        links: Iterable[EngineLink] = (),
        recovery: Recovery | None = None,
        *,
        parked_s: float = PARKED_S,
        first_id: int = 1,
        router: Router | None = None,
        ejection: Ejection | None = None,
        expects_first: bool = False,
    ) -> None:
        """ejection: None = all engines get requests. parked_s: how long a request may be without an engine.
        recovery: None = requests fail with it.
        first_id: of its requests; see wire.numbers. expects_first: the first engine is starting already when
        none is known yet, as where another process starts it."""
        self.dispatcher = Dispatcher(router or Router(), ejection or NoEjection(), parked_s)
        self.figures = self.dispatcher.figures
        self._observer = ReplicaObserver(self.dispatcher, recovery or NoRecovery())
        self._next_id = first_id
        self._closed = self._hurries = False
        self._expects_first = expects_first
        for link in links:
            self.add(link)

    def set_up(self, recovery: Recovery, router: Router) -> None:
        """In place of those that there were, for what comes from now on."""
        self._observer.recovery, self.dispatcher.router = recovery, router
        for link in self.serving:
            self.dispatcher.follow_pages(link)

    def listen(self, listener: ReplicaListener) -> None:
        """Have this listener hear of new engines and of their steps."""
        self._observer.listener = listener

    # ---- the engines

    @property
    def links(self) -> list[EngineLink]:
        return self.dispatcher.links

    @property
    def serving(self) -> list[EngineLink]:
        return self.dispatcher.serving

    def add(self, link: EngineLink) -> None:
        """In the place of one of the same name it has its role."""
        before = [other.engine.assigned_role for other in self.links if other.name == link.name]
        link.lifecycle.assign_role(before[-1] if before else "")
        link.observer = self._observer
        self.dispatcher.add(link)

    def remove(self, link: EngineLink) -> None:
        """Its engine is ended; what is still in flight there goes on elsewhere."""
        flights = link.requests.take_back(link.in_flight)
        self.dispatcher.remove(link)
        self.figures.gone(link)
        link.observer = None
        link.close("the engine is replaced")
        self._observer.resize()
        self.dispatcher.resume(flights)

    def retire(self, link: EngineLink, reason: str) -> None:
        """Requests that have not begun there go elsewhere; the others may end there."""
        link.lifecycle.retire(reason)
        self._observer.resize()
        self.dispatcher.resume(link.requests.take_waiting())

    def move(self, link: EngineLink, count: int, *, gives_pages: bool = False) -> int:
        """Its oldest requests go on elsewhere; returns how many there were. gives_pages: with their pages
        from there."""
        flights = link.requests.take_back(count)
        for flight in flights if gives_pages else ():
            flight.have_pages_of(link.load.engine_id, link.load.pages_address)
        self.dispatcher.resume(flights)
        return len(flights)

    def drain(self, timeout_s: float = 0.0) -> None:
        """Nobody asks these engines any more: have them end by themselves, within this time."""
        for link in self.links:
            link.commands.drain(timeout_s)

    # ---- their state as one

    @property
    def state(self) -> LinkState:
        is_coming = self._is_first_to_come and (self._observer.recovery.waits or not self.links)
        return joint.state(self.links, is_coming=is_coming)

    @property
    def reason(self) -> str:
        """The reason why none serves."""
        return joint.reason(self.links, is_coming=self._is_first_to_come)

    @property
    def _is_first_to_come(self) -> bool:
        return self._expects_first and self.figures.sizes is None

    @property
    def ready(self) -> Ready | None:
        """Sizes that the engines that serve can take together; None where there is none."""
        return self.figures.sizes if self.serving else None

    @property
    def takes(self) -> Ready | None:
        """Sizes that the next request may count with; not None while an engine is only being replaced."""
        waits = self._observer.recovery.waits and not self._closed
        return self.figures.sizes if self.serving or waits else None

    async def until_loaded(self) -> None:
        """Return when an engine serves, when none is loading any more, or when the server ends."""
        while self.state is LinkState.STARTING and not self._hurries:
            await self._observer.changed.wait()

    def hurry(self) -> None:
        """Nobody waits for an engine any more: the server ends."""
        self._hurries = True
        self._observer.changed.wake()

    # ---- requests

    @property
    def in_flight(self) -> int:
        return len(self.dispatcher.parked) + sum(link.in_flight for link in self.links)

    def next_id(self) -> int:
        """A request id that has not been used before."""
        self._next_id += 1
        return self._next_id - 1

    def submit(self, request: NewRequest, sink: Sink, session: bytes = b"", version: str = "") -> None:
        """version: of the weights. Raises EngineDeadError where no engine serves, and none will soon."""
        if self.takes is None:
            raise EngineDeadError(f"the engine does not serve: {self.reason}")
        self.dispatcher.begin(InFlight(request, sink, session, version))

    def abort(self, request_id: int) -> None:
        """Stop a request and forget its sink. Unknown ids are ignored."""
        for link in self.links:
            if link.requests.abort(request_id):
                return
        self.dispatcher.parked.remove(request_id)

    def close(self) -> None:
        """Requests in flight fail."""
        self._closed, self._observer.recovery = True, NoRecovery()
        for link in list(self.links):
            link.close()
        self.dispatcher.parked.close()
        self.hurry()
