"""Random traffic, deaths and refusals: the budget is kept, no model with requests is put away, and who waits
is served in the end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firelane.errors import EngineDeadError, FirelaneError
from firelane.node import node as node_module
from firelane.node.states import TRANSITIONS, Lifecycle, State
from firelane.wire.frames import Asleep
from tests.node.fake_engines import FakeEngines, FakeFiles, FakeNode

NAMES = ("a", "b", "c", "d", "e")
BUDGET = 32
TURNS = 12
OPS = st.tuples(
    st.sampled_from(
        (
            *("ask", "ask", "ask", "end", "die", "wait", "sweep", "sleep", "unload", "refuse", "finish"),
            *("slow", "pull", "remove", "offline"),
        )
    ),
    st.sampled_from(NAMES),
)


class Traffic:
    """Requests against a node, each of which holds its model until it ends."""

    def __init__(self) -> None:
        self.node = FakeNode(BUDGET, min_residence_s=1.0, patience_s=1.0, retry_s=1.0, max_retry_s=4.0)
        self.files = {name: FakeFiles(are_here=index % 2 == 0) for index, name in enumerate(NAMES)}
        self.engines = {
            name: self.node.make(
                name, ready_bytes=10, files=self.files[name], priority=index % 2, idle_s=20.0
            )
            for index, name in enumerate(NAMES)
        }
        self.tasks: list[asyncio.Task[Any]] = []

    async def ask(self, name: str) -> None:
        engines = self.engines[name]
        with contextlib.suppress(EngineDeadError):
            await self.node.want(engines.model)
            if engines.model.serves:
                engines.requests += 1

    def apply(self, op: str, name: str) -> None:
        engines, node = self.engines[name], self.node
        model = engines.model
        if op == "ask":
            self._spawn(self.ask(name))
        elif op == "end":
            engines.requests = max(0, engines.requests - 1)
        elif op == "die" and model.state in (State.READY, State.WAKING, State.SLEEPING, State.STANDBY):
            engines.requests = 0
            engines.die()
        elif op == "wait":
            node.clock.now_s += 3.0
        elif op == "sweep":
            node.sweep()
        elif op in ("sleep", "unload"):
            self._spawn(self._quietly(getattr(node, op)(model, 0.0)))
        elif op == "refuse":
            engines.refuses = "" if engines.refuses else "no process"
        elif op in ("pull", "remove"):
            self._spawn(self._quietly(getattr(node.pulls, op)(model)))
        elif op == "offline":
            self.files[name].refuses = "" if self.files[name].refuses else "no network"
        elif op == "slow":
            engines.at_once = not engines.at_once
        elif op == "finish":
            self.finish(engines)

    def finish(self, engines: FakeEngines) -> None:
        """Finish what an engine that is not done at once has begun."""
        state = engines.model.state
        if state is State.LOADING:
            engines.become_ready()
        elif state is State.WAKING:
            engines.awake()
        elif state is State.SLEEPING:
            engines.tell(Asleep(1, 0, 0.0))

    async def settle(self) -> None:
        for _ in range(TURNS):
            await asyncio.sleep(0)
            self.check()

    def check(self) -> None:
        assert self.node.used_bytes <= BUDGET
        for engines in self.engines.values():
            state = engines.model.state
            assert not (engines.requests and state in (State.SLEEPING, State.STANDBY, State.STOPPING))
            in_memory = state in (State.LOADING, State.READY, State.SLEEPING, State.STANDBY, State.WAKING)
            assert not in_memory or engines.model.files.are_here

    async def calm(self) -> None:
        """All requests end, and all engines do what they are told."""
        for engines in self.engines.values():
            engines.refuses, engines.at_once = "", True
        for files in self.files.values():
            files.refuses = ""
        under_way = (State.LOADING, State.WAKING, State.SLEEPING, State.PULLING)
        while any(not task.done() for task in self.tasks) or any(m.state in under_way for m in self.node):
            for engines in self.engines.values():
                engines.requests = 0
                self.finish(engines)
            self.node.clock.now_s += 1.0
            await self.settle()
        for engines in self.engines.values():
            engines.requests = 0

    async def _quietly(self, work: Any) -> None:
        with contextlib.suppress(FirelaneError):
            await work

    def _spawn(self, work: Any) -> None:
        self.tasks.append(asyncio.get_running_loop().create_task(work))


@settings(max_examples=60)
@given(st.lists(OPS, max_size=60))
def test_a_node_keeps_its_promises(ops: list[tuple[str, str]]) -> None:
    async def scenario() -> None:
        traffic = Traffic()
        for op, name in ops:
            traffic.apply(op, name)
            await traffic.settle()
        await traffic.calm()
        for task in traffic.tasks:
            task.result()
        for name in NAMES:
            await traffic.ask(name)
            traffic.check()
            traffic.engines[name].requests = 0
            traffic.node.clock.now_s += 10.0
        await traffic.node.close()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_module, "POLL_S", 0.0)
        asyncio.run(asyncio.wait_for(scenario(), 5))


@given(st.lists(st.sampled_from(list(State)), max_size=20))
def test_a_lifecycle_makes_no_step_that_is_not_drawn(steps: list[State]) -> None:
    lifecycle = Lifecycle("a")
    for step in steps:
        before = lifecycle.state
        if step in TRANSITIONS[before]:
            lifecycle.move(step)
            assert lifecycle.state is step
        else:
            with pytest.raises(AssertionError):
                lifecycle.move(step)
            assert lifecycle.state is before


def test_every_state_is_reached_and_left() -> None:
    assert set(TRANSITIONS) == set(State)
    assert set().union(*TRANSITIONS.values()) == set(State)
    assert all(TRANSITIONS.values())
