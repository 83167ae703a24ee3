"""A node: models that come to memory when they are wanted, within one budget, and leave it for each other.

Each model's state has one owner (states.py); who gives memory back is a pure choice (memory.py). Models that
need memory get it in the order in which they ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

from firelane.engine_state import EngineEvent, Exited, GaveUp
from firelane.errors import EngineDeadError, FirelaneError
from firelane.node.arrivals import Before
from firelane.node.memory import Holder, eviction, yielder
from firelane.node.model import NodeModel, NodeResidence
from firelane.node.policy import NodePolicy
from firelane.node.pulls import Pulls
from firelane.node.states import COMES, COMES_WHEN_WANTED, HOLDS_MEMORY, EnginesNow, State, next_state
from firelane.wire.frames import Ready

log = logging.getLogger(__name__)
T = TypeVar("T")
KILLED_STARTS = 3
"""Loads in a row that may end by a signal before the model is left alone."""
POLL_S = 0.02
"""Between two looks for memory, while a model waits for it: requests of others end without telling."""


class Node:
    """Owns its models' states. All methods belong to one event loop; each change of a model is announced by
    its lifecycle."""

    def __init__(
        self, policy: NodePolicy | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.policy = policy or NodePolicy()
        self._clock = clock
        self._models: dict[str, NodeModel] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closed = False
        self.pulls = Pulls(self._spawn)

    def __iter__(self) -> Iterator[NodeModel]:
        return iter(self._models.values())

    def __getitem__(self, name: str) -> NodeModel:
        return self._models[name]

    def add(self, model: NodeModel) -> None:
        self._models[model.name] = model

    def remove(self, name: str) -> None:
        """A model that has no engine any more."""
        del self._models[name]

    @property
    def used_bytes(self) -> int:
        return sum(model.held_bytes for model in self)

    def has_room(self, nbytes: int) -> bool:
        """Whether the budget, where there is one, has room for so much more."""
        budget = self.policy.budget_bytes
        return budget is None or self.used_bytes + nbytes <= budget

    def residence(self, name: str, *, waits: bool) -> NodeResidence:
        """The residence of a model, for the gateway. waits: as in NodeResidence."""
        model = self[name]
        return NodeResidence(
            model, partial(self.want, model), lambda: self.policy.wake_deadline_s, waits=waits
        )

    # ---- what is wanted

    async def start(self) -> None:
        """Load what is to be there from the start. Raises MachineError where the system makes no process."""
        for model in self:
            if model.policy.loads_first and model.state is State.ABSENT:
                self.bring(model)
            elif model.policy.loads_first:
                self._begin(model)
                await model.engines.start()

    async def close(self) -> None:
        """No model changes its state any more. Engines go on."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def bring(self, model: NodeModel) -> None:
        """Have a model come, like `want`, without waiting."""
        self._spawn(self._want_quietly(model))

    async def want(self, model: NodeModel) -> None:
        """Return when the model serves. Raises EngineDeadError where it will not soon."""
        model.waiting += 1
        try:
            while not model.serves:
                self._urge(model)
                await model.lifecycle.changed()
        finally:
            model.waiting -= 1
        model.last_used_s = self._clock()

    async def sleep(self, model: NodeModel, within_s: float) -> None:
        """Put a model to standby, or end its engines where they know none. Raises EngineDeadError where its
        requests have not ended within this time."""
        if model.state in COMES:
            await self.want(model)
        if model.state is State.READY:
            await self._empty(model, within_s, self._put_away)

    async def unload(self, model: NodeModel, within_s: float) -> None:
        """End a model's engines, as `sleep`, or its pull; the next request loads it again."""
        if model.state is State.PULLING:
            await self.pulls.stop(model)
        if model.state in (State.LOADING, State.WAKING, State.STANDBY):
            await self._stop(model)
        elif model.state is State.READY:
            await self._empty(model, within_s, self._stop)
        elif model.state is State.QUARANTINED:
            model.lifecycle.move(model.resting_state)

    def sweep(self) -> None:
        """Called each second: models that nobody has used for their time go to standby; requests that a model
        left behind are not forgotten."""
        now_s = self._clock()
        for model in self:
            if model.state in COMES_WHEN_WANTED and model.engines.is_busy and not model.waiting:
                self.bring(model)
            if model.state is not State.READY:
                continue
            if model.engines.is_busy:
                model.last_used_s = now_s
            elif model.is_overdue(now_s):
                self._spawn(self._put_away(model))

    async def _want_quietly(self, model: NodeModel) -> None:
        with contextlib.suppress(EngineDeadError):
            await self.want(model)

    # ---- what engines tell

    def apply(self, model: NodeModel, event: EngineEvent) -> None:
        """Something has happened to an engine of a model."""
        before, engines = model.state, model.engines
        if isinstance(event, Exited) and before in COMES:
            model.arrivals.engine_died()
        if isinstance(event, Ready) and before in (State.SLEEPING, State.STANDBY):
            engines.sleep()  # it took the place of one that had died there
        now = EnginesNow(serve=engines.serves, are_asleep=engines.are_asleep, are_awake=engines.are_awake)
        after = next_state(before, event, now)
        if after is before:
            return
        if after is State.READY:
            model.became_ready(self._clock())
        elif after is State.STANDBY:
            model.fell_asleep()
        elif after is State.STOPPING:
            self._spawn(self._stop(model))
        elif after is State.LOADING:
            if before is State.READY:
                model.arrivals.begin(Before.DIED, self._clock())
            model.lifecycle.move(State.LOADING, "its engine died")
        elif isinstance(event, GaveUp):
            self._give_up(model, event)

    def _give_up(self, model: NodeModel, event: GaveUp) -> None:
        """Its engines do not start. What is left of them is ended. An end by a signal is no fault of the
        model's: it is tried again at once, KILLED_STARTS times."""
        if event.was_killed and model.state is State.LOADING and model.failures < KILLED_STARTS:
            model.failures += 1
            log.warning("model_killed model=%s reason=%r; it is loaded again", model.name, event.message)
            self._spawn(self._start_again(model))
            return
        self._quarantine(model, event.message)
        self._spawn(model.engines.stop())

    # ---- how it is done

    def _urge(self, model: NodeModel) -> None:
        """Make sure that a model that is wanted comes. Raises EngineDeadError."""
        state, now_s = model.state, self._clock()
        if self._closed:
            raise EngineDeadError("the server is shutting down: try another one")
        if state is State.QUARANTINED and now_s < model.retry_at_s:
            left_s = max(1, round(model.retry_at_s - now_s))
            raise EngineDeadError(
                f"{model.name} does not start, and is tried again in {left_s} s: {model.reason}",
                retry_after_s=left_s,
            )
        if model.bringing is None and state in COMES_WHEN_WANTED:
            model.bringing = self._spawn(self._bring(model))

    async def _bring(self, model: NodeModel) -> None:
        try:
            if model.state is not State.STANDBY:
                await self.pulls.have(model)
            since_s = self._clock()
            async with self._turn:
                if not await self._make_room(model) or not model.can_come:
                    return
                sleeps = model.state is State.STANDBY
                self._begin(model, memory_s=self._clock() - since_s)
            if sleeps:
                model.engines.wake()
            else:
                await model.engines.start()
        except FirelaneError as error:
            self._quarantine(model, str(error))
        finally:
            model.bringing = None
            model.lifecycle.tell()

    def _begin(self, model: NodeModel, memory_s: float = 0.0) -> None:
        """A load, or a wake. memory_s: how long it waited for memory."""
        sleeps = model.state is State.STANDBY
        model.arrivals.begin(Before.STANDBY if sleeps else Before.NO_ENGINE, self._clock(), memory_s)
        model.lifecycle.move(State.WAKING if sleeps else State.LOADING)

    async def _start_again(self, model: NodeModel) -> None:
        await model.engines.stop()
        if model.state is not State.LOADING:
            return
        try:
            await model.engines.start()
        except FirelaneError as error:
            self._quarantine(model, str(error))

    async def _make_room(self, model: NodeModel) -> bool:
        """Have others give memory back until there is enough; false where nobody wants it any more."""
        since_s, yielding = self._clock(), list[NodeModel]()
        try:
            while (missing := self._missing_bytes(model)) > 0:
                if not model.waiting:
                    return False
                holders = self._holders(model)
                found = eviction(holders, missing, self.policy.min_residence_s)
                if found is not None:
                    for name in found.names:
                        self[name].evictions += 1
                    await asyncio.gather(
                        *(self._put_away(self[name], ends=found.ends) for name in found.names)
                    )
                    continue
                if not yielding and self._clock() - since_s >= self.policy.patience_s:
                    self._ask_to_yield(model, holders, yielding)
                await asyncio.sleep(POLL_S)
        finally:
            for other in yielding:
                other.yields(False)
        return bool(model.waiting)

    def _ask_to_yield(self, model: NodeModel, holders: list[Holder], yielding: list[NodeModel]) -> None:
        found = yielder(holders, model.policy.priority, self.policy.min_residence_s)
        if found is not None:
            log.info("model_yields model=%s to=%s", found.name, model.name)
            self[found.name].yields(True)
            yielding.append(self[found.name])

    def _missing_bytes(self, model: NodeModel) -> int:
        if self.policy.budget_bytes is None:
            return 0
        others = self.used_bytes - model.held_bytes
        return others + model.need_bytes - self.policy.budget_bytes

    def _holders(self, without: NodeModel) -> list[Holder]:
        now_s = self._clock()
        able = (State.READY, State.STANDBY)
        return [one.holder(now_s) for one in self if one is not without and one.state in able]

    async def _put_away(self, model: NodeModel, *, ends: bool = False) -> None:
        """To standby; to the end, where it is there or its engines know none."""
        if model.engines.is_busy:
            return
        if ends or model.state is not State.READY or not model.engines.can_sleep:
            await self._stop(model)
            return
        model.lifecycle.move(State.SLEEPING)
        model.engines.sleep()
        await model.lifecycle.leaves(State.SLEEPING)

    async def _stop(self, model: NodeModel) -> None:
        if model.state not in HOLDS_MEMORY | {State.STANDBY} or model.state is State.STOPPING:
            return
        model.lifecycle.move(State.STOPPING)
        await model.engines.stop()
        model.lifecycle.move(model.resting_state)

    async def _empty(
        self,
        model: NodeModel,
        within_s: float,
        then: Callable[[NodeModel], Coroutine[Any, Any, None]],
    ) -> None:
        """Let a model's requests end, those that come wait, and then put it away."""
        model.yields(True)
        ends_s = self._clock() + within_s
        try:
            while model.state is State.READY and model.engines.is_busy:
                if self._clock() >= ends_s:
                    raise EngineDeadError(f"{model.name} has requests that have not ended: try again later")
                await asyncio.sleep(POLL_S)
            if model.state is State.READY:
                await then(model)
        finally:
            model.yields(False)

    def _quarantine(self, model: NodeModel, reason: str) -> None:
        model.failures += 1
        model.failed += 1
        wait_s = min(self.policy.max_retry_s, self.policy.retry_s * 2 ** (model.failures - 1))
        model.retry_at_s = self._clock() + wait_s
        model.files.look()
        log.error("model_quarantined model=%s retry_s=%g error=%r", model.name, wait_s, reason)
        model.lifecycle.move(State.QUARANTINED, reason)

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
