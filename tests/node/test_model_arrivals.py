"""Records of how models came: from where, what they waited for, what it took."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firelane.node import node as node_module
from firelane.node.states import State
from tests.node.fake_engines import FakeNode

S = State


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "POLL_S", 0.0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))


async def settle(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.getMessage().startswith("model_came")]


def test_memory_and_load_are_told_apart(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = FakeNode(10)
        a, b = node.make("a"), node.make("b", ready_bytes=9)
        await node.want(a.model)
        a.requests, b.at_once = 1, False
        wanted = asyncio.ensure_future(node.want(b.model))
        for _ in range(20):
            await asyncio.sleep(0)
        node.clock.now_s += 1.5
        a.requests = 0
        await settle(lambda: b.model.state is S.LOADING)
        node.clock.now_s += 0.25
        b.become_ready()
        await wanted
        came = b.model.arrivals
        assert (came.count, came.loads, came.memory_s, came.load_s, came.wake_s) == (1, 1, 1.5, 0.25, 0)

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert lines(caplog) == [
        "model_came model=a before='no engine' memory_s=0.000 took_s=0.000 deaths=0",
        "model_came model=b before='no engine' memory_s=1.500 took_s=0.250 deaths=0",
    ]


def test_a_wake_from_standby_is_no_load() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        await node.sleep(a.model, 1.0)
        a.at_once = False
        wanted = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.model.state is S.WAKING)
        node.clock.now_s += 0.5
        a.awake()
        await wanted
        came = a.model.arrivals
        assert (came.count, came.loads, came.load_s, came.wake_s) == (2, 1, 0, 0.5)

    run(scenario)


@pytest.mark.parametrize("wakes", [False, True], ids=["load", "wake"])
def test_an_engine_that_dies_while_its_model_comes_lengthens_that_coming(
    wakes: bool, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        if wakes:
            await node.want(a.model)
            await node.sleep(a.model, 1.0)
        a.at_once = False
        wanted = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.model.state in (S.WAKING, S.LOADING))
        node.clock.now_s += 1.0
        a.die()
        assert a.model.state is S.LOADING
        node.clock.now_s += 2.0
        a.become_ready()
        await wanted
        assert a.model.arrivals.count == 1 + wakes

    with caplog.at_level(logging.INFO):
        run(scenario)
    before = "standby" if wakes else "no engine"
    assert lines(caplog)[-1] == f"model_came model=a before='{before}' memory_s=0.000 took_s=3.000 deaths=1"


def test_an_engine_that_dies_while_it_serves_is_another_coming(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        a.die()
        node.clock.now_s += 2.0
        a.become_ready()
        assert (a.model.arrivals.count, a.model.arrivals.loads, a.model.arrivals.load_s) == (2, 2, 2.0)

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert lines(caplog)[-1] == "model_came model=a before='died' memory_s=0.000 took_s=2.000 deaths=0"


def test_a_model_that_does_not_come_leaves_no_record(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        a.refuses = "no room"
        node.bring(a.model)
        await settle(lambda: a.model.state is S.QUARANTINED)
        assert a.model.arrivals.count == 0

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert lines(caplog) == []


def test_a_pinned_model_comes_quietly(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a", pinned=True)
        await node.start()
        assert a.model.arrivals.count == 1

    with caplog.at_level(logging.INFO):
        run(scenario)
    assert lines(caplog) == []
