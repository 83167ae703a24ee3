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

import logging
import time
from collections.abc import Iterable, Sequence

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines import joint
from firelane.gateway.engines.in_flight import InFlight, Sink
from firelane.gateway.engines.joint import EngineChildren, add_counters, together
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.link.load import EngineLoad
from firelane.gateway.engines.link.waiters import Waiters
from firelane.gateway.engines.listener import NOBODY
from firelane.gateway.engines.recovery.ejection import Ejection, NoEjection
from firelane.gateway.engines.recovery.parked import ParkedRequests
from firelane.gateway.engines.recovery.recovery import Death, NoRecovery, Recovery
from firelane.gateway.engines.routing.routing import Router
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import EngineStats, NewRequest, Progress, Ready, StepFrame

log = logging.getLogger(__name__)
PARKED_S = 600.0


class ReplicaSet:
    """Links may be added and removed at any time. All methods belong to one event loop.

    deaths, resumed: engines that ended, and requests that went on elsewhere, since the start. handed_over:
    requests that went from an engine for prefill to one for decode.
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
        self._router = router or Router()
        self._ejection: Ejection = ejection or NoEjection()
        self.links: list[EngineLink] = []
        self._link_of: dict[EngineLoad, EngineLink] = {}
        self.events = NOBODY
        self.deaths = self.resumed = self.handed_over = 0
        self._recovery: Recovery = recovery or NoRecovery()
        self._next_id = first_id
        self._identity: str | None = None
        self.sizes: Ready | None = None
        """Sizes that `ready` tells, also in standby; those of the last engines where there are none."""
        self._before = EngineStats()  # counters of engines that have gone
        self._parked = ParkedRequests(self, parked_s)
        self._closed = False
        self._alone: EngineLink | None = None
        """Engine that has a request alone, on trial: it gets no other one."""
        self._waiters = Waiters()
        self.children = EngineChildren(lambda: self.links)
        self._hurries, self._expects_first = False, expects_first
        for link in links:
            self.add(link)

    # ---- the engines

    def set_up(self, recovery: Recovery, router: Router) -> None:
        """In place of those that there were, for what comes from now on."""
        self._recovery, self._router = recovery, router
        for link in self.serving:
            self._follow_pages(link)

    def add(self, link: EngineLink) -> None:
        """In the place of one of the same name it has its role."""
        before = [other.engine.assigned_role for other in self.links if other.name == link.name]
        link.lifecycle.assign_role(before[-1] if before else "")
        link.owner = self
        self.links.append(link)
        self._link_of[link.load] = link

    def remove(self, link: EngineLink) -> None:
        """Its engine is ended; what is still in flight there goes on elsewhere."""
        flights = link.requests.take_back(link.in_flight)
        self.links.remove(link)
        del self._link_of[link.load]
        self._before = add_counters(self._before, link.load.stats)
        self.children.gone(link)
        link.owner = None
        link.close("the engine is replaced")
        self._resize()
        self._resume(flights)

    def retire(self, link: EngineLink, reason: str) -> None:
        """Requests that have not begun there go elsewhere; the others may end there."""
        link.lifecycle.retire(reason)
        self._resize()
        self._resume(link.requests.take_waiting())

    def move(self, link: EngineLink, count: int, *, gives_pages: bool = False) -> int:
        """Its oldest requests go on elsewhere; returns how many there were. gives_pages: with their pages
        from there."""
        flights = link.requests.take_back(count)
        for flight in flights if gives_pages else ():
            flight.have_pages_of(link.load.engine_id, link.load.pages_address)
        self._resume(flights)
        return len(flights)

    @property
    def serving(self) -> list[EngineLink]:
        ready = LinkState.READY
        return [link for link in self.links if link.lifecycle.state is ready]

    @property
    def state(self) -> LinkState:
        is_coming = self._is_first_to_come and (self._recovery.waits or not self.links)
        return joint.state(self.links, is_coming=is_coming)

    @property
    def reason(self) -> str:
        """The reason why none serves."""
        return joint.reason(self.links, is_coming=self._is_first_to_come)

    @property
    def _is_first_to_come(self) -> bool:
        return self._expects_first and self.sizes is None

    @property
    def progress(self) -> Progress | None:
        """Progress of the first engine that loads."""
        return joint.progress(self.links)

    @property
    def left_s(self) -> int:
        """Time until the next engine is likely to serve, in whole seconds."""
        return joint.left_s(self.links)

    async def until_loaded(self) -> None:
        """Return when an engine serves, when none is loading any more, or when the server ends."""
        while self.state is LinkState.STARTING and not self._hurries:
            await self._waiters.wait()

    def hurry(self) -> None:
        """Nobody waits for an engine any more: the server ends."""
        self._hurries = True
        self._waiters.wake()

    def sleep(self) -> None:
        """All engines that serve go to standby."""
        for link in self.serving:
            link.commands.sleep()

    def wake(self) -> None:
        for link in self.links:
            link.commands.wake()

    def drain(self, timeout_s: float = 0.0) -> None:
        """Nobody asks these engines any more: have them end by themselves, within this time."""
        for link in self.links:
            link.commands.drain(timeout_s)

    @property
    def ready(self) -> Ready | None:
        """Sizes that the engines that serve can take together; None where there is none."""
        return self.sizes if self.serving else None

    @property
    def takes(self) -> Ready | None:
        """Sizes that the next request may count with; not None while an engine is only being replaced."""
        return self.sizes if self.serving or (self._recovery.waits and not self._closed) else None

    @property
    def stats(self) -> EngineStats:
        """Sums; counters with those of engines that have gone."""
        return joint.stats(self._before, self.links)

    @property
    def stats_by_replica(self) -> dict[str, EngineStats]:
        """Statistics of the engines that there are; for a while there may be two in one place."""
        return joint.stats_by_replica(self.links)

    @property
    def ejected(self) -> int:
        """Number of times that an engine was kept from new requests for a while."""
        return self._ejection.ejected

    # ---- requests

    @property
    def in_flight(self) -> int:
        return len(self._parked) + sum(link.in_flight for link in self.links)

    @property
    def parked(self) -> int:
        """Requests without an engine."""
        return len(self._parked)

    @property
    def unheard(self) -> int:
        """Requests that have lost or changed their engine, and have no token since."""
        return self._parked.unheard

    def next_id(self) -> int:
        """A request id that has not been used before."""
        self._next_id += 1
        return self._next_id - 1

    def submit(self, request: NewRequest, sink: Sink, session: bytes = b"") -> None:
        """Raises EngineDeadError where no engine serves, and none will soon."""
        if self.takes is None:
            raise EngineDeadError(f"the engine does not serve: {self.reason}")
        self._route(InFlight(request, sink, session), self.serving)

    def abort(self, request_id: int) -> None:
        """Stop a request and forget its sink. Unknown ids are ignored."""
        for link in self.links:
            if link.requests.abort(request_id):
                return
        self._parked.remove(request_id)

    def close(self) -> None:
        """Requests in flight fail."""
        self._closed, self._recovery = True, NoRecovery()
        for link in list(self.links):
            link.close()
        self._parked.close()
        self.hurry()

    def _send(self, flight: InFlight) -> None:
        """Send a request that engines may have had before."""
        self._route(flight, [link for link in self.serving if link.requests.takes(flight)])

    def _route(self, flight: InFlight, serving: list[EngineLink]) -> None:
        engines: Sequence[EngineLoad] = [link.load for link in serving if link is not self._alone]
        if len(engines) > 1:
            engines = self._ejection.admitted(engines, time.monotonic())
        route = self._router.route(flight, engines)
        if route is not None:
            then = route.next_engine
            flight.hands_over = then is not None
            self._link_of[route.engine].requests.submit(flight)
            if then is not None:
                flight.next_engine = then.engine_id
                self._link_of[then].requests.expect(flight, route.engine)
        else:
            self._parked.add(flight)

    def _resume(self, flights: list[InFlight]) -> None:
        self.resumed += len(flights)
        self._parked.listen(flights)
        for flight in flights:
            self._send(flight)

    # ---- asked by ParkedRequests

    @property
    def serves(self) -> bool:
        return bool(self.serving)

    def holds(self, flight: InFlight) -> bool:
        return any(link.requests.holds(flight) for link in self.links)

    def send_again(self, flight: InFlight) -> None:
        self.resumed += 1
        self._send(flight)

    def send_alone(self, flight: InFlight) -> bool:
        takers = [link for link in self.serving if link.requests.takes(flight)]
        if not takers:
            return False
        self._alone = link = min(takers, key=lambda one: one.in_flight)
        self.resumed += 1
        self._resume(link.requests.take_back(link.in_flight))
        flight.hands_over = False
        link.requests.submit(flight)
        return True

    def share_again(self) -> None:
        self._alone = None
        for flight in self._parked.take():
            self._send(flight)

    # ---- called by links

    def on_ready(self, link: EngineLink, ready: Ready) -> str:
        others = [other for other in self.links if other is not link and other.state is LinkState.READY]
        if self._identity not in (None, ready.identity):
            if others:
                return (
                    "the model has changed since the other engines loaded it, or this one computes in "
                    "another way: give all engines one model, the same options and CPU target, or restart "
                    "the server"
                )
            self._parked.fail("the engine came back with another model")
        self._identity = ready.identity
        link.lifecycle.serve(ready)
        self._follow_pages(link)
        self._resize()
        self.events.on_ready(ready)
        if link.state is LinkState.READY:
            self._send_parked()
        return ""

    def on_awake(self, link: EngineLink) -> None:
        self._follow_pages(link)
        self._resize()
        self._send_parked()

    def _follow_pages(self, link: EngineLink) -> None:
        """Engines tell their pages once there is another one to choose."""
        others = [other for other in self.serving if other is not link] if self._router.follows_pages else []
        for one in (link, *others) if len(others) == 1 else (link,) if others else ():
            one.commands.follow_pages()

    def _send_parked(self) -> None:
        self._parked.try_next()
        for flight in self._parked.take():
            self._send(flight)
        self._parked.try_next()

    def on_frame(self, link: EngineLink, frame: StepFrame, now_s: float) -> None:
        if self.deaths:  # else nobody is suspected
            self._parked.try_next()
        for wait in link.requests.waits if len(self.links) > 1 else ():
            self._ejection.note(link.load, wait)
        self.events.on_frame(frame, now_s, link.requests.step_prompt_tokens)

    def on_lost(self, link: EngineLink, lost: list[InFlight], reason: str, *, is_seen: bool) -> None:
        self.deaths += 1
        self._ejection.lost(link.load, time.monotonic())
        self._router.lost(link.load)
        self._before = add_counters(self._before, link.load.stats)
        self.children.gone(link)
        self._resize()
        is_alone, self._alone = link is self._alone, None if link is self._alone else self._alone
        is_alone = is_alone and not (link.load.is_shared and link.load.sequences > 1)
        death = Death(reason, self._parked.on_trial, is_alone, link.lifecycle.has_crashed, is_seen)
        verdict = self._recovery.judge(lost, death)
        for flight, error in verdict.fail:
            flight.fail(error)
        suspects = [*verdict.alone, *verdict.one_by_one]
        if verdict.resume or suspects:
            log.warning(
                "requests_resumed replica=%s count=%d tokens=%d one_by_one=%d failed=%d reason=%r",
                *(link.name, len(verdict.resume), sum(flight.prompt_tokens for flight in verdict.resume)),
                *(len(suspects), len(verdict.fail), reason),
            )
        self._parked.accuse(verdict.alone)
        self._parked.suspect(verdict.one_by_one)
        self._parked.try_next()
        self._resume(verdict.resume)
        self._parked.try_next()

    def on_returned(self, link: EngineLink, returned: list[InFlight]) -> None:
        del link
        self._resize()
        if self._recovery.waits:
            self._resume(returned)
            return
        error = EngineDeadError("the engine is shutting down: try again")
        for flight in returned:
            flight.fail(error)

    def on_left(self, link: EngineLink) -> None:
        del link
        if len(self._parked):
            self._send_parked()

    def on_ended(self, link: EngineLink, flight: InFlight) -> None:
        del link
        self._router.ended(flight)

    def on_pages(self, link: EngineLink, frame: PageChanges) -> None:
        self._router.on_pages(link.load, frame)

    def on_handed_over(self, link: EngineLink, flight: InFlight) -> None:
        self.handed_over += 1
        flight.have_pages_of(link.load.engine_id, link.load.pages_address)
        self._send(flight)

    def _resize(self) -> None:
        """While none serves, the sizes of the last one count."""
        ready = [link.ready for link in self.links if link.ready is not None]
        self.sizes = together(ready) or self.sizes
        self._waiters.wake()
