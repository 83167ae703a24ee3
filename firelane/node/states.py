"""States of a model on a node, and the one owner of each model's state.

    no files         absent --pull--> pulling --> on disk, or packed
    no engine        on disk, packed --load--> loading --> ready <--> (sleeping, standby, waking)
    process without memory                                  standby
    quarantined: engines that did not start are left alone for a while

docs/node.md has the drawing; TRANSITIONS has every step.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from firelane.engine_state import EngineEvent, Exited, GaveUp, Lost
from firelane.wire.frames import Asleep, Awake, Ready

log = logging.getLogger(__name__)


class State(enum.Enum):
    """absent: the files of its source are not on this machine. packed: its weights and kernels lie in the
    cache, from an earlier load. quarantined: its files did not come, or its engines did not start, and
    neither is tried for a while."""

    ABSENT = "absent"
    PULLING = "pulling"
    ON_DISK = "on disk"
    PACKED = "packed"
    LOADING = "loading"
    READY = "ready"
    SLEEPING = "sleeping"
    STANDBY = "standby"
    WAKING = "waking"
    STOPPING = "stopping"
    QUARANTINED = "quarantined"


_S = State
RESTS = frozenset({_S.ABSENT, _S.ON_DISK, _S.PACKED})
"""No engine, and no work on it."""
TRANSITIONS: dict[State, frozenset[State]] = {
    _S.ABSENT: frozenset({_S.PULLING, _S.ON_DISK, _S.PACKED, _S.QUARANTINED}),
    _S.PULLING: RESTS,
    _S.ON_DISK: frozenset({_S.LOADING, _S.PULLING, _S.PACKED, _S.ABSENT}),
    _S.PACKED: frozenset({_S.LOADING, _S.PULLING, _S.ON_DISK, _S.ABSENT}),
    _S.LOADING: frozenset({_S.READY, _S.STOPPING, _S.QUARANTINED}),
    _S.READY: frozenset({_S.SLEEPING, _S.STOPPING, _S.LOADING, _S.QUARANTINED}),
    _S.SLEEPING: frozenset({_S.STANDBY, _S.STOPPING}),
    _S.STANDBY: frozenset({_S.WAKING, _S.STOPPING}),
    _S.WAKING: frozenset({_S.READY, _S.LOADING, _S.STOPPING, _S.QUARANTINED}),
    _S.STOPPING: RESTS,
    _S.QUARANTINED: frozenset({_S.LOADING, _S.PULLING}) | RESTS,
}
HOLDS_MEMORY = frozenset({_S.LOADING, _S.READY, _S.SLEEPING, _S.WAKING, _S.STOPPING})
"""States in which a model counts with all that it takes when it is ready."""
COMES = frozenset({_S.LOADING, _S.WAKING})
"""Ready soon, without anybody's doing."""
COMES_WHEN_WANTED = RESTS | {_S.STANDBY, _S.QUARANTINED}


@dataclass(frozen=True, kw_only=True)
class EnginesNow:
    """All engines of a model together, at the moment of an event."""

    serve: bool
    """One at least takes requests."""
    are_asleep: bool
    """All that there are are in standby."""
    are_awake: bool
    """One at least serves, and none is in standby."""


def next_state(state: State, event: EngineEvent, engines: EnginesNow) -> State:
    """The state of a model after an event of one of its engines. Pure: `Node.apply` does what it takes to get
    there. A model that is in standby ends when an engine of it dies: nobody waits for it there.
    """
    match event:
        case Ready() if state is State.LOADING:
            return State.READY
        case Awake() | Lost() if state in COMES and engines.are_awake:
            return State.READY
        case Asleep() if state is State.SLEEPING and engines.are_asleep:
            return State.STANDBY
        case Exited() if state in (State.SLEEPING, State.STANDBY):
            return State.STOPPING
        case Exited() if state in (State.READY, State.WAKING) and not engines.serve:
            return State.LOADING
        case GaveUp() if state in (State.LOADING, State.WAKING, State.READY) and not engines.serve:
            return State.QUARANTINED
        case _:
            return state


class Lifecycle:
    """The state of one model. All methods belong to one event loop."""

    def __init__(
        self,
        name: str,
        state: State = State.ON_DISK,
        *,
        clock: Callable[[], float] = time.monotonic,
        log_level: int = logging.INFO,
    ) -> None:
        """log_level: of the line that each change is."""
        self.name, self.state, self.reason = name, state, ""
        self.since_s = clock()
        self._clock, self._log_level = clock, log_level
        self._waiters: list[asyncio.Future[None]] = []

    def move(self, state: State, reason: str = "") -> None:
        """To another state, as TRANSITIONS allow it; a wrong step is a defect."""
        assert state in TRANSITIONS[self.state], f"{self.name}: {self.state.value} -> {state.value}"
        now_s = self._clock()
        log.log(
            self._log_level,
            "model_state model=%s state=%r before=%r for_s=%.1f%s",
            *(self.name, state.value, self.state.value, now_s - self.since_s),
            f" reason={reason!r}" if reason else "",
        )
        self.state, self.reason, self.since_s = state, reason, now_s
        self.tell()

    def tell(self) -> None:
        """Wake all that wait for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Return when the state has changed, or somebody has told so."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        await waiter

    async def leaves(self, state: State) -> State:
        """Return when the model is in `state` no more; gives the state that it has then."""
        while self.state is state:
            await self.changed()
        return self.state
