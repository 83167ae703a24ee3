"""The state of one engine as its server sees it, the events that change it, and the one function that applies
an event to a state.

    starting --Ready--> ready --Sleeping--> standby --Awake--> ready
        any --Retired, Lost--> dead --Connected--> starting

Whoever logs, shows or routes reads the state, or looks at the event that it is handed; nobody keeps a copy.
An EngineLifecycle has the state of the engine in one place of a server, from one process to the next.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec

from firelane.child_process.child import code_of, in_words, is_own_doing
from firelane.errors import KilledError
from firelane.wire.adapters import AdaptersServed
from firelane.wire.frames import Asleep, Awake, Failed, Loading, Progress, Ready


class LinkState(enum.Enum):
    """Whether requests can go to an engine."""

    STARTING = "starting"
    READY = "ready"
    STANDBY = "standby"
    DEAD = "dead"


@dataclass(frozen=True, kw_only=True)
class EngineExit:
    """The end of an engine process."""

    pid: int
    return_code: int
    lived_s: float

    @property
    def is_own_doing(self) -> bool:
        """False also where another process has killed one that the engine cannot do without."""
        code = self.return_code
        return code != KilledError.exit_code and (code == 0 or is_own_doing(code))

    @property
    def exit_code(self) -> int:
        """The code that a command which depends on the engine should end with."""
        return self.return_code if self.return_code > 0 else 1

    def __str__(self) -> str:
        return f"engine process {self.pid} {in_words(self.return_code)}"


@dataclass(frozen=True)
class Connected:
    """A connection to an engine stands; the engine loads, or has loaded."""

    is_remote: bool = False


@dataclass(frozen=True)
class Unreachable:
    """No connection to the engine of another host came about."""

    reason: str


@dataclass(frozen=True)
class Assigned:
    """The engine has another part of requests from now on. role: "" gives it back its own."""

    role: str


@dataclass(frozen=True)
class Retired:
    """No new requests go to the engine; those in flight go on."""

    reason: str


@dataclass(frozen=True)
class Sleeping:
    """The engine was asked to go to standby when it has nothing left."""


@dataclass(frozen=True)
class Lost:
    """The connection has ended, and with it all that was in flight."""

    reason: str


@dataclass(frozen=True)
class Exited:
    """The engine's process has ended without being asked to; its supervisor is about to start another one, or
    gives up."""

    ended: EngineExit


@dataclass(frozen=True)
class GaveUp:
    """The place of an engine stays empty. was_killed: by a signal, and the engine had no words about it."""

    message: str
    exit_code: int
    was_killed: bool = False


EngineEvent = (
    Connected
    | Unreachable
    | Loading
    | Progress
    | Ready
    | AdaptersServed
    | Assigned
    | Retired
    | Sleeping
    | Asleep
    | Awake
    | Failed
    | Lost
    | Exited
    | GaveUp
)


@dataclass(frozen=True, kw_only=True)
class EngineState:
    """All that is known of an engine. Replaced as a whole, by `apply` alone."""

    link: LinkState = LinkState.STARTING
    reason: str = "the engine has not been started yet"
    """The reason why no requests can go there; "" where they can."""
    is_remote: bool = False
    """The engine is on another host."""
    assigned_role: str = ""
    """The part of requests that is sent there in place of the engine's own; "" for its own."""
    progress: Progress | None = None
    """The last that the engine has told of its load."""
    ready: Ready | None = None
    """The engine's sizes, while requests can go there or it is in standby."""
    asleep: Asleep | None = None
    """The engine's answer once it is in standby."""
    failed: Failed | None = None
    """The engine's last words, where it has ended with an error."""

    @property
    def role(self) -> str:
        """The part of requests that is sent there."""
        return "both" if self.ready is None else self.assigned_role or self.ready.role

    @property
    def engine_id(self) -> str:
        return "" if self.ready is None else self.ready.engine_id

    @property
    def pages_address(self) -> str:
        """The address of the engine's pages; "" for an engine of this machine, whose peers are connected."""
        return self.ready.pages_address if self.ready is not None and self.is_remote else ""

    @property
    def kv_tokens(self) -> int:
        """Tokens that fit into the engine's KV cache."""
        return 0 if self.ready is None else self.ready.num_blocks * self.ready.block_size


def apply(state: EngineState, event: EngineEvent) -> EngineState:  # limits: exempt (one case for each event)
    """The state after an event. Pure: equal arguments give equal states. Events that change nothing of what
    is kept, and those that come too late, give the state itself.
    """
    match event:
        case Connected(is_remote=is_remote):
            return EngineState(
                reason="the engine is starting", is_remote=is_remote, assigned_role=state.assigned_role
            )
        case Unreachable(reason=reason):
            return replace(state, reason=reason)
        case Progress():
            return replace(state, progress=event)
        case Ready():
            return replace(state, link=LinkState.READY, reason="", ready=event)
        case AdaptersServed(adapters=adapters) if state.ready is not None:
            return replace(state, ready=msgspec.structs.replace(state.ready, adapters=adapters))
        case Assigned(role=role):
            return replace(state, assigned_role=role)
        case Retired(reason=reason) if state.link is LinkState.READY:
            return replace(state, link=LinkState.DEAD, reason=reason, ready=None)
        case Sleeping() if state.link is LinkState.READY:
            return replace(state, link=LinkState.STANDBY, reason="the engine is in standby")
        case Asleep() if state.link is LinkState.STANDBY:
            return replace(state, asleep=event)
        case Awake() if state.link is LinkState.STANDBY:
            return replace(state, link=LinkState.READY, reason="", asleep=None)
        case Failed():
            return replace(state, failed=event, reason=event.message)
        case Lost(reason=reason):
            why = state.failed.message if state.failed is not None else reason
            return replace(state, link=LinkState.DEAD, reason=why, ready=None, asleep=None)
        case _:
            return state


UNKNOWN_S = 5
"""Seconds left of a stage that does not tell how far it is."""
MOST_S = 600


@dataclass(slots=True)
class _LoadStage:
    began_s: float
    first: float
    latest: Progress


class LoadClock:
    """Reports of one engine's load. Stages run at the same time: the longest one counts."""

    def __init__(self) -> None:
        self._stages: dict[str, _LoadStage] = {}

    def note(self, frame: Progress, now_s: float) -> None:
        stage = self._stages.setdefault(frame.stage, _LoadStage(now_s, frame.done, frame))
        stage.latest = frame

    def left_s(self, now_s: float) -> int:
        """Whole seconds, at least 1: when it is worth asking again."""
        left = [_left_s(stage, now_s) for stage in self._stages.values()]
        return min(MOST_S, max(1, math.ceil(max(left, default=1.0))))


def _left_s(stage: _LoadStage, now_s: float) -> float:
    frame, done = stage.latest, stage.latest.done - stage.first
    if frame.done >= frame.total:
        return 0.0
    return (now_s - stage.began_s) * (frame.total - frame.done) / done if done > 0 else UNKNOWN_S


class EngineLifecycle:
    """The engine of one place, from one process to the next. Events change its state here, and nowhere else.
    All methods belong to one event loop."""

    def __init__(self, tell: Callable[[EngineEvent], None], on_state: Callable[[EngineState], None]) -> None:
        """tell: gets each event once all that follows from it is done. on_state: gets each new state at
        once."""
        self._tell, self._on_state = tell, on_state
        self.load_clock = LoadClock()
        self.has_crashed = False
        """The process that ended last did so by itself."""
        self.has_served = False
        """The process has answered something."""
        self.ready_s: float | None = None
        """The moment when the process became ready, by time.monotonic."""
        self.version: str | None = None
        """The version of the weights, also after the process has ended; None: it has not been ready yet."""
        self.engine = EngineState()
        self.state, self.ready = self.engine.link, self.engine.ready
        """Parts of `engine` that are read for each request."""
        self.apply(Assigned(""))

    @property
    def is_ready(self) -> bool:
        return self.state is LinkState.READY

    def computes(self, version: str, adapter: str) -> bool:
        """Whether the engine has weights of this version, and an adapter of this digest; "" stands for none,
        which all have."""
        ready = self.ready
        if ready is None or ready.version != version:
            return False
        return not adapter or adapter in ready.adapters.values()

    def apply(self, event: EngineEvent) -> None:
        """Change the state; the caller tells the event later, if at all."""
        self.engine = engine = apply(self.engine, event)
        self.state, self.ready = engine.link, engine.ready
        self._on_state(engine)

    def change(self, event: EngineEvent) -> None:
        """Change the state, and tell the event."""
        self.apply(event)
        self._tell(event)

    def begin(self, *, is_remote: bool) -> None:
        """A connection to the next process stands."""
        self.has_served = self.has_crashed = False
        self.ready_s = None
        self.change(Connected(is_remote))

    def note_progress(self, frame: Progress) -> None:
        self.load_clock.note(frame, time.monotonic())
        self.change(frame)

    def serve(self, ready: Ready) -> None:
        """The engine has been accepted; the caller tells the event."""
        self.ready_s, self.version = time.monotonic(), ready.version
        self.apply(ready)

    def assign_role(self, role: str) -> None:
        """The part of requests that is sent there from now on; "": the engine's own."""
        self.change(Assigned(role))

    def retire(self, reason: str) -> None:
        """No new requests go there; those in flight go on."""
        if self.is_ready:
            self.change(Retired(reason))

    def lose(self, lost: Lost) -> None:
        """The connection has ended; the caller tells the event."""
        self.has_crashed = self.has_crashed or self._ended_by_itself
        self.apply(lost)
        self.load_clock = LoadClock()

    @property
    def _ended_by_itself(self) -> bool:
        """The engine has crashed: no other process ended it. One that says why it ends may have lost a
        process of its own that another one killed."""
        if self.engine.failed is not None or self.ready is None or self.engine.is_remote:
            return False
        return is_own_doing(code_of(self.ready.pid))
