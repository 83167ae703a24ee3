"""The gateway's side of frames to an engine process: one connection at a time, made again after a restart."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from firelane.child_process.child import ProcessState, UnknownProcess
from firelane.engine_state import EngineEvent, EngineLifecycle, EngineState, LinkState, Lost
from firelane.errors import (
    DeadlineError,
    FirelaneError,
    ModelNotServedError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
)
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.commands import Commands
from firelane.gateway.engines.link.connection import Connection, Renumbering
from firelane.gateway.engines.link.load import EngineLoad
from firelane.gateway.engines.link.observer import LinkObserver
from firelane.gateway.engines.link.outbox import Outbox
from firelane.gateway.engines.link.requests import EngineRequests
from firelane.gateway.engines.link.watch import NoWatch, Watch
from firelane.wire.adapters import AdaptersServed
from firelane.wire.cache_events import CacheEvents, PageChanges
from firelane.wire.frames import (
    PROTOCOL_VERSION,
    Asleep,
    Awake,
    Beat,
    EngineStats,
    Failed,
    Finished,
    Forgotten,
    FromEngine,
    Progress,
    Ready,
    Rejected,
    StepFrame,
    ToEngine,
)

log = logging.getLogger(__name__)
Tell = Callable[["EngineLink", EngineEvent | CacheEvents], None]
STUCK_S = 5.0
"""A step of such an age is what hangs, where the engine is given up; else its whole process is stopped."""


class EngineLink:
    """One engine as the gateway sees it: its connection, and the parts by which it is used.

        lifecycle   its state; each event that changes it is handed to `tell`, and so are its CacheEvents
        load        its work, as the router reads it
        requests    what is in flight there
        commands    standby, drain, erasures

    A supervisor calls `attach` with the socket of each new engine. An engine that shows no life is killed
    through `process`.
    """

    def __init__(
        self,
        *,
        name: str = "0",
        watch: Watch | None = None,
        tell: Tell | None = None,
        is_shared: bool = False,
    ) -> None:
        """name: of the replica, in logs and metrics. is_shared: other gateways have connections to the
        engine."""
        self.name = name
        self.process: ProcessState = UnknownProcess()
        """The process of the engine, where it is one of this machine."""
        self.observer: LinkObserver[EngineLink] | None = None
        self.load = EngineLoad(name, is_shared=is_shared)
        self.lifecycle = EngineLifecycle(self._tell_event, self.load.describe)
        outbox = Outbox(self._send)
        self.requests = EngineRequests(outbox, self.load)
        self.commands = Commands(self.lifecycle, outbox, self._send)
        self._tell, self._watch = tell or _tell_nobody, watch or NoWatch()
        self._delivery = self.requests.delivery
        self._connection: Connection | None = None
        self._ended: asyncio.Future[str] | None = None

    def _tell_event(self, event: EngineEvent) -> None:
        self._tell(self, event)

    @property
    def engine(self) -> EngineState:
        """All that is known of the engine itself."""
        return self.lifecycle.engine

    @property
    def state(self) -> LinkState:
        return self.lifecycle.state

    @property
    def ready(self) -> Ready | None:
        """The engine's sizes, while requests can go there or it is in standby."""
        return self.lifecycle.ready

    @property
    def in_flight(self) -> int:
        return len(self.requests)

    # ---- the connection

    async def attach(self, sock: socket.socket) -> None:
        """Take over a connected stream socket to an engine that is loading. Owns and closes the socket.

        What is still in flight on an older connection is lost.
        """
        self._renew()
        self._connection = await Connection.open(sock, self.receive, self.lose)
        self._watch.begin(self._connection, self.hang, lambda: self.process)

    def adopt(self, stream: asyncio.Transport, number: int, head: bytes) -> asyncio.Future[str]:
        """Attach a connection over a network that stands already and does not read. number: of its requests'
        ids there; head: what has come of its frames. The future has the reason when the connection ends by
        itself."""
        self._renew(is_remote=True)
        self._ended = asyncio.get_running_loop().create_future()
        self._connection = Connection(self.receive, self.lose, Renumbering(number))
        self._watch.begin(self._connection, self.hang, lambda: self.process)
        ended = self._ended
        self._connection.take_over(stream, head)
        return ended

    def _renew(self, *, is_remote: bool = False) -> None:
        if self._connection is not None:
            self._detach()
            self.lose("another engine takes its place")
        self.lifecycle.begin(is_remote=is_remote)

    def close(self, reason: str = "the gateway is closing") -> None:
        """Drop the connection for good; requests in flight are lost, and nobody is told any more."""
        self._tell, self._ended = _tell_nobody, None
        self._detach()
        self.lose(reason)

    def hang(self, reason: str) -> None:
        """The engine shows no life: it is given up at once, and its process killed."""
        if self._connection is None:
            return
        log.error("engine_hangs replica=%s reason=%r", self.name, reason)
        self.lifecycle.has_crashed = self.load.beat.age_s > STUCK_S
        self.process.kill()
        self._detach()
        self.lose(reason, is_closed=False)

    def _detach(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _send(self, frame: ToEngine) -> None:
        if self._connection is not None:
            self._connection.send(frame)

    def lose(self, reason: str, is_closed: bool = True) -> None:
        """The connection is gone, and all that is in flight. is_closed: by the other end, not a network."""
        self._connection = None
        self._watch.end()
        lost = Lost(reason)
        self.lifecycle.lose(lost)
        self.commands.changes.give_up()
        flights = self.requests.clear()
        if self.observer is not None:
            is_seen = is_closed or not self.engine.is_remote
            self.observer.on_lost(self, flights, self.engine.reason, is_seen=is_seen)
        self.load.stats = EngineStats()
        self.requests.count()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.engine.reason)
        self._tell(self, lost)

    # ---- frames

    def receive(self, frame: FromEngine, more: bool = False) -> None:
        """Act on one frame from the engine. more: as in Delivery.deliver."""
        if isinstance(frame, StepFrame):
            self._on_step(frame, more=more)
        elif isinstance(frame, Beat):
            self._watch.note(frame)
            self.load.note(frame)
        elif isinstance(frame, Ready):
            self._on_ready(frame)
        elif isinstance(frame, Rejected):
            self._on_rejected(frame)
        elif isinstance(frame, CacheEvents):
            self._tell(self, frame)
        elif isinstance(frame, PageChanges):
            if self.observer is not None and self.state in (LinkState.READY, LinkState.STANDBY):
                self.observer.on_pages(self, frame)
        elif isinstance(frame, Asleep | Awake):
            self._on_standby(frame)
        elif isinstance(frame, Forgotten):
            self.commands.erasures.take(frame.id, frame.pages)
        elif isinstance(frame, AdaptersServed):
            self._on_adapters(frame)
        elif isinstance(frame, Progress):
            self.lifecycle.note_progress(frame)
        else:
            self.lifecycle.change(frame)

    def _on_ready(self, ready: Ready) -> None:
        problem = protocol_problem(ready)
        if not problem and self.observer is not None:
            problem = self.observer.on_ready(self, ready)
        if problem:
            self.lifecycle.apply(Failed(problem, 1))
            self._detach()
            self.lose(problem)
            return
        if self.observer is None:
            self.lifecycle.serve(ready)
        self._watch.serves()
        if self.lifecycle.is_ready:
            self._tell(self, ready)

    def _on_standby(self, frame: Asleep | Awake) -> None:
        if self.state is not LinkState.STANDBY:
            return
        self.lifecycle.apply(frame)
        if self.observer is not None and isinstance(frame, Awake):
            self.observer.on_awake(self)
        self._tell(self, frame)

    def _on_adapters(self, frame: AdaptersServed) -> None:
        self.lifecycle.change(frame)
        if self.observer is not None:
            self.observer.on_adapters(self)
        self.commands.changes.take(frame.id, frame)

    def _on_rejected(self, frame: Rejected) -> None:
        flight = self._delivery.gone(frame.id)
        self.requests.count()
        if flight is not None and frame.elsewhere:
            self._give_back([flight])
        elif flight is not None:
            flight.fail(error_of(frame))

    def _on_step(self, frame: StepFrame, *, more: bool) -> None:
        now_s = time.monotonic()  # the loop's own clock has stood still since its turn began
        self.load.stats = frame.stats
        if frame.step > 0:
            self.lifecycle.has_served = True
        self._delivery.deliver(frame, now_s, more=more)
        if not more:
            self.requests.count()
        if frame.finished:
            self._end(frame.finished)
        if self.observer is not None:
            self.observer.on_frame(self, frame, now_s)

    def _end(self, finishes: list[Finished]) -> None:
        some_leave = bool(self._delivery.leaving)
        returned, handed_over, ended = self._delivery.end(finishes)
        self.requests.count()
        if self.observer is not None:
            if some_leave:
                self.observer.on_left(self)
            for flight in handed_over:
                self.observer.on_handed_over(self, flight)
            for flight in ended:
                self.observer.on_ended(self, flight)
        if returned:
            self._give_back(returned)

    def _give_back(self, flights: list[InFlight]) -> None:
        self.lifecycle.retire("the engine is ending")
        if self.observer is not None:
            self.observer.on_returned(self, flights)


def _tell_nobody(*_: object) -> None:
    pass


def error_of(frame: Rejected) -> FirelaneError:
    """An error with the frame's status, or with that of its hundred."""
    if frame.code == DeadlineError.reason:
        return DeadlineError(frame.message)
    if frame.status == QueueFullError.status:
        return QueueFullError(frame.message)
    if frame.status == QueueTimeoutError.status:
        return QueueTimeoutError(frame.message)
    if frame.status == ModelNotServedError.status:
        return ModelNotServedError(frame.message, code=frame.code or None)
    if frame.status >= FirelaneError.status:
        return FirelaneError(frame.message)
    return RequestError(frame.message, code="rejected_by_engine")


def protocol_problem(ready: Ready) -> str:
    """The reason why no frames can be exchanged with this engine; "" where they can."""
    if ready.protocol == PROTOCOL_VERSION:
        return ""
    return (
        f"the engine speaks protocol {ready.protocol}, this gateway {PROTOCOL_VERSION}: install the same "
        "version of Firelane for both"
    )
