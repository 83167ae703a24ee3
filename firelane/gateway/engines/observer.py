"""Reactions to what happens at the links to the engines of one model."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines.dispatcher import Dispatcher
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import Death, Recovery
from firelane.gateway.engines.trials import Trials
from firelane.wire.cache_events import PageChanges
from firelane.wire.frames import Ready, StepFrame

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReplicaListener:
    """Calls by which the gateway hears of new engines and of each of their steps."""

    on_ready: Callable[[Ready], None]
    on_frame: Callable[[StepFrame, float, int], None]
    """After all sinks have seen the frame. The time is of the monotonic clock. The figure behind it counts
    tokens of the prompts that ended in the step."""


def _nothing(*_: object) -> None:
    pass


NOBODY = ReplicaListener(_nothing, _nothing)
"""Hears nothing."""


class Waiters:
    """Tasks that wait for the next change of something. All methods belong to one event loop."""

    __slots__ = ("_futures",)

    def __init__(self) -> None:
        self._futures: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Until the next `wake`."""
        future = asyncio.get_running_loop().create_future()
        self._futures.append(future)
        await future

    def wake(self) -> None:
        futures, self._futures = self._futures, []
        for future in futures:
            if not future.done():
                future.set_result(None)


class ReplicaObserver:
    """Hears of all links of one model (LinkObserver): what is lost goes on elsewhere, what is parked goes to
    engines that serve again. All methods belong to one event loop."""

    def __init__(self, dispatcher: Dispatcher, recovery: Recovery) -> None:
        self.recovery, self.listener = recovery, NOBODY
        self.changed = Waiters()
        """Tasks that wait until an engine has come or gone."""
        self._dispatcher, self._figures, self._parked = dispatcher, dispatcher.figures, dispatcher.parked
        self._trials = Trials(dispatcher)
        self._identities: dict[str, str] = {}  # by version

    def on_ready(self, link: EngineLink, ready: Ready) -> str:
        version = ready.version
        serving = [one for one in self._dispatcher.serving if one is not link]
        others = [one for one in serving if one.lifecycle.version == version]
        if self._identities.get(version, ready.identity) != ready.identity:
            if others:
                return (
                    "the model has changed since the other engines loaded it, or this one computes in "
                    "another way: give all engines one model, the same options and CPU target, or restart "
                    "the server"
                )
            self._parked.fail("the engine came back with another model")
        self._identities[version] = ready.identity
        link.lifecycle.serve(ready)
        self._dispatcher.follow_pages(link)
        self.resize()
        self.listener.on_ready(ready)
        if link.state is LinkState.READY:
            self._send_parked()
        return ""

    def on_awake(self, link: EngineLink) -> None:
        self._dispatcher.follow_pages(link)
        self.resize()
        self._send_parked()

    def on_adapters(self, link: EngineLink) -> None:
        del link
        self.resize()

    def on_frame(self, link: EngineLink, frame: StepFrame, now_s: float) -> None:
        if self._figures.deaths:  # else nobody is suspected
            self._trials.try_next()
        requests = link.requests
        for wait in requests.waits if len(self._dispatcher.links) > 1 else ():
            self._dispatcher.ejection.note(link.load, wait)
        self.listener.on_frame(frame, now_s, requests.step_prompt_tokens)

    def on_lost(self, link: EngineLink, lost: list[InFlight], reason: str, *, is_seen: bool) -> None:
        self._figures.deaths += 1
        self._dispatcher.ejection.lost(link.load, time.monotonic())
        self._dispatcher.router.lost(link.load)
        self._figures.gone(link)
        self.resize()
        is_alone = self._trials.lost(link)
        death = Death(reason, self._trials.flight, is_alone, link.lifecycle.has_crashed, is_seen)
        verdict = self.recovery.judge(lost, death)
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
        self._trials.try_next()
        self._dispatcher.resume(verdict.resume)
        self._trials.try_next()

    def on_returned(self, link: EngineLink, returned: list[InFlight]) -> None:
        del link
        self.resize()
        if self.recovery.waits:
            self._dispatcher.resume(returned)
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
        self._dispatcher.router.ended(flight)

    def on_pages(self, link: EngineLink, frame: PageChanges) -> None:
        self._dispatcher.router.on_pages(link.load, frame)

    def on_handed_over(self, link: EngineLink, flight: InFlight) -> None:
        self._figures.handed_over += 1
        flight.have_pages_of(link.load.engine_id, link.load.pages_address)
        self._dispatcher.send(flight)

    def resize(self) -> None:
        """An engine has come or gone."""
        self._figures.resize()
        self.changed.wake()

    def _send_parked(self) -> None:
        self._trials.try_next()
        self._dispatcher.send_parked()
        self._trials.try_next()
