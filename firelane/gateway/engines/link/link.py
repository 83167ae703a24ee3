"""The gateway's side of frames to an engine process: one connection at a time, made again after a restart."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable

from firelane.child_process.child import ProcessState, UnknownProcess, code_of, is_own_doing
from firelane.engine_state import (
    Assigned,
    Connected,
    EngineEvent,
    EngineState,
    LinkState,
    Lost,
    Retired,
    Sleeping,
    Unreachable,
    apply,
)
from firelane.gateway.engines.in_flight import InFlight
from firelane.gateway.engines.link.connection import Connection, Outbox, Renumbering
from firelane.gateway.engines.link.delivery import Delivery
from firelane.gateway.engines.link.erasures import Erasures
from firelane.gateway.engines.link.link_owner import LinkOwner
from firelane.gateway.engines.link.refusal import error_of, protocol_problem
from firelane.gateway.engines.link.watch import NoWatch, Watch
from firelane.gateway.engines.recovery.ejection import Wait
from firelane.gateway.engines.routed_engine import RoutedEngine, TenantLoad, told_ms
from firelane.gateway.engines.routing.load_clock import LoadClock
from firelane.wire.cache_events import CacheEvents, PageChanges
from firelane.wire.frames import (
    Asleep,
    Awake,
    Beat,
    Drain,
    EngineStats,
    Failed,
    Finished,
    ForgetTenant,
    Forgotten,
    FromEngine,
    Progress,
    Ready,
    Rejected,
    Sleep,
    StepFrame,
    TellPages,
    ToEngine,
    Wake,
)

log = logging.getLogger(__name__)
Tell = Callable[["EngineLink", EngineEvent | CacheEvents], None]
STUCK_S = 5.0
"""A step of such an age is what hangs, where the engine is given up; else its whole process is stopped."""


class EngineLink:
    """One engine as the gateway sees it, and the requests in flight there.

    `engine` is all that is known of the engine itself. Each event that changes it is handed to `tell`; so are
    the engine's CacheEvents. A supervisor calls `attach` with the socket of each new engine. An engine that
    shows no life is killed through `process`. A request that has left an engine never comes back to the same
    process: tokens still on their way from there cannot be taken for those of its next life.
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
        self.engine = EngineState()
        self.process: ProcessState = UnknownProcess()
        """The process of the engine, where it is one of this machine."""
        self.owner: LinkOwner[EngineLink] | None = None
        self.stats = EngineStats()
        self.beat = Beat(0.0)
        self.load_clock = LoadClock()
        self.is_shared = is_shared
        self.has_crashed = False
        """The engine that ended last did so by itself."""
        self.has_served = False
        """The engine has answered something."""
        self.ready_s: float | None = None
        """The moment when the engine became ready, by time.monotonic."""
        self.life = 0
        """Number that differs between two processes of one place."""
        self.prefill_tokens = 0
        """Tokens that are likely left, as of the last frame, of uncached prompts that have not drawn yet."""
        self.queued: TenantLoad | None = None
        """The same by tenant, where the engine takes turns between tenants."""
        self.sequences = 0
        """Sequences in flight there, for other gateways too as far as told."""
        self.step_ms = self.token_ms = 0.0
        self._tell, self._watch = tell or _tell_nobody, watch or NoWatch()
        self._delivery = Delivery(self.abort)
        self._outbox = Outbox(self._send)
        self._connection: Connection | None = None
        self._ended: asyncio.Future[str] | None = None
        self._erasures = Erasures()
        self._apply(Assigned(""))

    def _apply(self, event: EngineEvent) -> None:
        """Change the state of the engine. What the router reads for each request is at hand then."""
        self.engine = engine = apply(self.engine, event)
        self.state, self.ready, self.role = engine.link, engine.ready, engine.role
        self.engine_id, self.pages_address = engine.engine_id, engine.pages_address
        self.kv_tokens = engine.kv_tokens

    def _change(self, event: EngineEvent) -> None:
        """Change the state of the engine, and tell it."""
        self._apply(event)
        self._tell(self, event)

    @property
    def is_ready(self) -> bool:
        return self.state is LinkState.READY

    @property
    def in_flight(self) -> int:
        return len(self._delivery.flights)

    @property
    def step_prompt_tokens(self) -> int:
        """Tokens of the prompts that the last step began."""
        return self._delivery.step_prompt_tokens

    @property
    def waits(self) -> list[Wait]:
        """Waits of requests that got their first token here in the last step."""
        return self._delivery.waits

    def expect(self, flight: InFlight, source: RoutedEngine) -> None:
        """A request that another engine begins is going to come here: have its pages from there."""
        self._outbox.submit(flight.announcement(source.engine_id, source.pages_address))

    def holds(self, flight: InFlight) -> bool:
        return flight.id in self._delivery.flights

    def takes(self, flight: InFlight) -> bool:
        """Whether the engine has told the end of what it had of this request before, if anything."""
        return flight.id not in self._delivery.leaving

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

    def not_reached(self, reason: str) -> None:
        self._change(Unreachable(reason))

    def _renew(self, *, is_remote: bool = False) -> None:
        if self._connection is not None:
            self._detach()
            self.lose("another engine takes its place")
        self.has_served = self.has_crashed = False
        self.ready_s = None
        self._change(Connected(is_remote))

    def submit(self, flight: InFlight) -> None:
        """Queue a request; those of one event-loop turn travel together. Only where the link is ready."""
        self._delivery.add(flight)
        self._count()
        self._outbox.submit(flight.continuation())

    def abort(self, request_id: int) -> bool:
        """Stop a request and forget its sink. False where it is not here."""
        if not self._delivery.leave(request_id):
            return False
        self._count()
        self._outbox.abort(request_id)
        return True

    def take_back(self, count: int) -> list[InFlight]:
        """The oldest requests leave this engine, to go on elsewhere."""
        flights = list(self._delivery.flights.values())[:count]
        return [flight for flight in flights if self.abort(flight.id)]

    def take_waiting(self) -> list[InFlight]:
        """Requests that the engine has not begun leave it."""
        waiting = [flight for flight in self._delivery.flights.values() if not flight.running]
        return [flight for flight in waiting if self.abort(flight.id)]

    def retire(self, reason: str) -> None:
        """No new requests go here; those in flight go on."""
        if self.state is LinkState.READY:
            self._change(Retired(reason))

    def sleep(self) -> None:
        """Have the engine go to standby when it has nothing left; new requests wait elsewhere."""
        if self.state is LinkState.READY and self._connection is not None:
            self._change(Sleeping())
            self._outbox.flush()
            self._connection.send(Sleep())

    def wake(self) -> None:
        """Have it come back."""
        if self.state is LinkState.STANDBY and self._connection is not None:
            self._connection.send(Wake())

    def forget_tenant(self, asked: ForgetTenant) -> asyncio.Future[int] | None:
        """Have the engine erase a tenant's pages. The future has their number; None without an
        engine."""
        if self._connection is None or self.ready is None:
            return None
        self._connection.send(asked)
        return self._erasures.expect(asked.id)

    def follow_pages(self) -> None:
        """Have the engine tell its pages from now on (`on_pages`)."""
        self._send(TellPages())

    def drain(self, timeout_s: float) -> None:
        """Ask the engine to end when it has nothing left, or at the latest after this time."""
        self.retire("the engine is draining")
        self._outbox.flush()
        self._send(Drain(timeout_s))

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
        self.has_crashed = self.beat.age_s > STUCK_S
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

    def receive(self, frame: FromEngine, *, more: bool = False) -> None:
        """Act on one frame from the engine. more: as in Delivery.deliver."""
        if isinstance(frame, StepFrame):
            self._on_step(frame, more=more)
        elif isinstance(frame, Beat):
            self._watch.note(frame)
            self.beat = frame
            self.step_ms, self.token_ms = map(told_ms, (frame.step_ms, frame.token_ms))
        elif isinstance(frame, Ready):
            self._on_ready(frame)
        elif isinstance(frame, Rejected):
            self._on_rejected(frame)
        elif isinstance(frame, CacheEvents):
            self._tell(self, frame)
        elif isinstance(frame, PageChanges):
            if self.owner is not None and self.state in (LinkState.READY, LinkState.STANDBY):
                self.owner.on_pages(self, frame)
        elif isinstance(frame, Asleep | Awake):
            self._on_standby(frame)
        elif isinstance(frame, Forgotten):
            self._erasures.take(frame)
        else:
            if isinstance(frame, Progress):
                self.load_clock.note(frame, time.monotonic())
            self._change(frame)

    def _on_ready(self, ready: Ready) -> None:
        problem = protocol_problem(ready)
        if not problem and self.owner is not None:
            problem = self.owner.on_ready(self, ready)
        if problem:
            self._apply(Failed(problem, 1))
            self._detach()
            self.lose(problem)
            return
        if self.owner is None:
            self.serve(ready)
        self._watch.serves()
        if self.state is LinkState.READY:
            self._tell(self, ready)

    def serve(self, ready: Ready) -> None:
        """The owner has accepted the engine."""
        self.life, self.ready_s = hash((self.name, ready.pid)), time.monotonic()
        self._apply(ready)

    def assign_role(self, role: str) -> None:
        """The part of requests that is sent here from now on; "": the engine's own."""
        self._change(Assigned(role))

    def _count(self) -> None:
        """Call after each change of the requests in flight."""
        load, own = self._delivery.load, len(self._delivery.flights)
        self.prefill_tokens = load.left(time.monotonic(), self.token_ms)
        self.queued = load.queued if self.ready and self.ready.scheduling_policy == "fair" else None
        self.sequences = max(own, self.stats.running + self.stats.waiting) if self.is_shared else own

    def _on_standby(self, frame: Asleep | Awake) -> None:
        if self.state is not LinkState.STANDBY:
            return
        self._apply(frame)
        if self.owner is not None and isinstance(frame, Awake):
            self.owner.on_awake(self)
        self._tell(self, frame)

    def _on_rejected(self, frame: Rejected) -> None:
        flight = self._delivery.gone(frame.id)
        self._count()
        if flight is not None and frame.elsewhere:
            self._give_back([flight])
        elif flight is not None:
            flight.fail(error_of(frame))

    def _on_step(self, frame: StepFrame, *, more: bool) -> None:
        now_s = time.monotonic()  # the loop's own clock has stood still since its turn began
        self.stats, self.has_served = frame.stats, self.has_served or frame.step > 0
        self._delivery.deliver(frame, now_s, more=more)
        if not more:
            self._count()
        if frame.finished:
            self._end(frame.finished)
        if self.owner is not None:
            self.owner.on_frame(self, frame, now_s)

    def _end(self, finishes: list[Finished]) -> None:
        some_leave = bool(self._delivery.leaving)
        returned, handed_over, ended = self._delivery.end(finishes)
        self._count()
        if self.owner is not None:
            if some_leave:
                self.owner.on_left(self)
            for flight in handed_over:
                self.owner.on_handed_over(self, flight)
            for flight in ended:
                self.owner.on_ended(self, flight)
        if returned:
            self._give_back(returned)

    def _give_back(self, flights: list[InFlight]) -> None:
        self.retire("the engine is ending")
        if self.owner is not None:
            self.owner.on_returned(self, flights)

    @property
    def _ended_by_itself(self) -> bool:
        """The engine has crashed: no other process ended it. One that says why it ends may have lost a
        process of its own that another one killed."""
        if self.engine.failed is not None or self.ready is None or self.engine.is_remote:
            return False
        return is_own_doing(code_of(self.ready.pid))

    def lose(self, reason: str, is_closed: bool = True) -> None:
        """The connection is gone, and all that is in flight. is_closed: by the other end, not a network."""
        self._connection = None
        self._watch.end()
        self.has_crashed = self.has_crashed or self._ended_by_itself
        lost = Lost(reason)
        self._apply(lost)
        self._outbox.clear()
        flights = self._delivery.clear()
        self.load_clock = LoadClock()
        if self.owner is not None:
            is_seen = is_closed or not self.engine.is_remote
            self.owner.on_lost(self, flights, self.engine.reason, is_seen=is_seen)
        self.stats = EngineStats()
        self._count()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(self.engine.reason)
        self._tell(self, lost)


def _tell_nobody(*_: object) -> None:
    pass
