"""One model of a node: its policy, its engines, its state, what the choice of memory needs to know, and its
residence, as the gateway sees it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

from firelane.errors import FirelaneError
from firelane.node.arrivals import Arrivals
from firelane.node.memory import Holder
from firelane.node.policy import ModelPolicy
from firelane.node.states import COMES_WHEN_WANTED, HOLDS_MEMORY, RESTS, Lifecycle, State

FIRST_COST_S = 1.0
"""To come back, of a model that never has."""


OnProgress = Callable[[int, int], None]
"""Bytes that are here, of bytes."""


class ModelEngines(Protocol):
    """All engines of one model. Their events go to the node (Node.apply)."""

    @property
    def serves(self) -> bool: ...

    @property
    def is_busy(self) -> bool:
        """There are requests, other than those that wait for the model."""
        ...

    @property
    def can_sleep(self) -> bool:
        """All know standby. Only known when they are ready."""
        ...

    @property
    def ready_bytes(self) -> int:
        """Memory of weights, KV cache and states, as the engines tell; 0 before they have."""
        ...

    @property
    def standby_bytes(self) -> int: ...

    @property
    def are_asleep(self) -> bool:
        """All are in standby."""
        ...

    @property
    def are_awake(self) -> bool:
        """None is in standby any more, and one at least serves."""
        ...

    async def start(self) -> None:
        """Raises MachineError where the system makes no process."""
        ...

    async def stop(self) -> None:
        """End all, also those that load; returns when the processes have gone. Idempotent."""
        ...

    def sleep(self) -> None: ...
    def wake(self) -> None: ...


class PackedMark(Protocol):
    """The mark of a model that was loaded before, so that its weights and kernels lie in the cache."""

    @property
    def is_set(self) -> bool: ...
    def set(self) -> None: ...


class _NoMark:
    is_set = False

    def set(self) -> None:
        self.is_set = True


class ModelFiles(Protocol):
    """Files of one model's source, and what was made of them."""

    @property
    def are_here(self) -> bool: ...

    def look(self) -> None:
        """Look anew whether the files are here."""
        ...

    async def pull(self, on_progress: OnProgress, *, whole: bool) -> None:
        """Return when they are here, and the model's engines have been told. whole: with weights that else
        stay in a store until they are packed. A pull that is cancelled, or killed, goes on where it was with
        the next. Raises FirelaneError."""
        ...

    async def remove(self) -> int:
        """Take away all of them that was fetched or made; returns how many bytes. Raises FirelaneError."""
        ...


class _LocalFiles:
    are_here = True

    def look(self) -> None: ...

    async def pull(self, on_progress: OnProgress, *, whole: bool) -> None: ...

    async def remove(self) -> int:
        return 0


class NodeModel:
    """Owned by a Node. files_work: what is done with its files. pulled: bytes of bytes, while they
    come. waiting: requests that wait for it. keep_s: how long it stays without a request, where the last one
    said so (below 0: for ever), in place of the policy's. failures: in a row. evictions, failed: times that
    it left for another one, and did not come."""

    def __init__(
        self,
        name: str,
        engines: ModelEngines,
        policy: ModelPolicy | None = None,
        *,
        mark: PackedMark | None = None,
        files: ModelFiles | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name, self.engines, self.policy = name, engines, policy or ModelPolicy()
        self._mark: PackedMark = mark or _NoMark()
        self.files: ModelFiles = files or _LocalFiles()
        # That a model which stays has come is told by the start's lines.
        self._log_level = logging.DEBUG if self.policy.pinned else logging.INFO
        self.lifecycle = Lifecycle(name, self.resting_state, clock=clock, log_level=self._log_level)
        self.arrivals = Arrivals(name)
        self.bringing: asyncio.Task[None] | None = None
        self.files_work: asyncio.Task[FirelaneError | None] | None = None
        self.pulled = (0, 0)
        self.waiting = self.failures = 0
        self.evictions = self.failed = 0
        self.last_used_s = self.ready_s = clock()
        self.retry_at_s = 0.0
        self.keep_s: float | None = None
        self._is_yielding = False
        self._load_s = self._wake_s = FIRST_COST_S
        self._standby_bytes = 0
        self._clock = clock

    @property
    def state(self) -> State:
        return self.lifecycle.state

    @property
    def reason(self) -> str:
        return self.lifecycle.reason

    @property
    def resting_state(self) -> State:
        """Without an engine."""
        if not self.files.are_here:
            return State.ABSENT
        return State.PACKED if self._mark.is_set else State.ON_DISK

    def mark_with(self, mark: PackedMark) -> None:
        """Take the mark of other options, with which the model has no engine yet."""
        self._mark = mark
        self.settle()

    def settle(self, reason: str = "") -> None:
        """To the state that its files are in, where it rests or they came."""
        found = self.resting_state
        if self.state is State.PULLING or (self.state in RESTS and self.state is not found):
            self.lifecycle.move(found, reason)

    def note_pulled(self, done: int, total: int) -> None:
        self.pulled = (done, total)

    @property
    def serves(self) -> bool:
        """Takes new requests."""
        return self.state is State.READY and not self._is_yielding

    @property
    def can_come(self) -> bool:
        """The model has what an engine needs, and none that comes already."""
        return self.state is State.STANDBY or (self.state in COMES_WHEN_WANTED and self.files.are_here)

    @property
    def left_s(self) -> float:
        """Until it is likely to serve, when it is wanted now."""
        return self._wake_s if self.state in (State.STANDBY, State.WAKING) else self._load_s

    @property
    def need_bytes(self) -> int:
        return self.engines.ready_bytes or self.policy.need_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of the budget that this model holds now."""
        if self.state in HOLDS_MEMORY:
            return self.need_bytes
        return self.engines.standby_bytes if self.state is State.STANDBY else 0

    def used(self, keep_s: float | None) -> None:
        """A request came. keep_s: as in the class."""
        self.last_used_s, self.keep_s = self._clock(), keep_s

    def became_ready(self, now_s: float) -> None:
        took_s = max(0.0, now_s - self.lifecycle.since_s)
        if self.state is State.WAKING:
            self._wake_s = took_s
        else:
            self._load_s = took_s
        self._mark.set()
        self.failures = 0
        self.arrivals.end(now_s, self._log_level)
        self.ready_s = self.last_used_s = now_s
        self.lifecycle.move(State.READY)

    def fell_asleep(self) -> None:
        self._standby_bytes = self.engines.standby_bytes
        self.lifecycle.move(State.STANDBY)

    def yields(self, yields: bool) -> None:
        """Whether new requests wait, so that those in flight end and the memory goes to others."""
        self._is_yielding = yields
        self.lifecycle.tell()

    def is_overdue(self, now_s: float) -> bool:
        """Nobody has used it for the time that it is kept."""
        return not self.waiting and self.left_here_s(now_s) == 0

    def left_here_s(self, now_s: float) -> float | None:
        """Until it leaves memory if nobody asks for it; None: it stays."""
        keep_s = self.policy.idle_s if self.keep_s is None else self.keep_s
        if self.policy.pinned or keep_s is None or keep_s < 0:
            return None
        return max(0.0, self.last_used_s + keep_s - now_s)

    def holder(self, now_s: float) -> Holder:
        is_ready, engines = self.state is State.READY, self.engines
        sleeps = is_ready and engines.can_sleep
        return Holder(
            name=self.name,
            gives_bytes=self.held_bytes - (self._standby_bytes if sleeps else 0),
            ends_bytes=self.held_bytes,
            priority=self.policy.priority,
            idle_s=now_s - self.last_used_s,
            resident_s=now_s - self.ready_s,
            cost_s=self._wake_s if sleeps else self._load_s,
            is_busy=engines.is_busy,
            is_pinned=self.policy.pinned,
            is_ready=is_ready,
        )


class NodeResidence:
    """The residence of a model on a node. waits: requests that come while the model loads for the first time
    wait for it, whatever the gateway's own rule says."""

    def __init__(
        self,
        model: NodeModel,
        want: Callable[[], Awaitable[None]],
        deadline_s: Callable[[], float],
        *,
        waits: bool,
    ) -> None:
        """want: returns when the model serves, raises EngineDeadError where it will not soon. deadline_s:
        longest time that a request waits."""
        self._model, self._waits = model, waits
        self._want, self._deadline_s, self.used = want, deadline_s, model.used

    @property
    def is_cold(self) -> bool:
        model = self._model
        return not model.serves and (self._waits or model.state is not State.LOADING)

    @property
    def state(self) -> str:
        model = self._model
        if model.state is State.PULLING and model.pulled[1]:
            done, total = (nbytes / 1e6 for nbytes in model.pulled)
            return f"{model.state.value} {done:.0f} of {total:.0f} MB"
        return "" if model.state in (State.READY, State.LOADING) else model.state.value

    @property
    def reason(self) -> str:
        return self._model.reason

    @property
    def left_s(self) -> int:
        return max(1, round(self._model.left_s))

    @property
    def leaves(self) -> bool:
        return not self._model.policy.pinned

    @property
    def deadline_s(self) -> float:
        return self._deadline_s()

    async def want(self) -> None:
        await self._want()

    async def changed(self) -> None:
        await self._model.lifecycle.changed()
