"""Models that come and go: who gives memory to whom, and what becomes of requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firelane.engine_state import GaveUp
from firelane.errors import EngineDeadError
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


def test_a_model_comes_when_it_is_wanted_and_gives_way_to_the_next() -> None:
    async def scenario() -> None:
        node = FakeNode(12)
        a, b = node.make("a"), node.make("b")
        await node.want(a.model)
        assert node.states() == {"a": S.READY, "b": S.ON_DISK}
        await node.want(b.model)
        assert node.states() == {"a": S.STANDBY, "b": S.READY}
        await node.want(a.model)
        assert node.states() == {"a": S.READY, "b": S.STANDBY}
        assert a.calls == ["start", "sleep", "wake"]
        assert (a.model.evictions, b.model.evictions) == (1, 1)
        assert node.used_bytes == 11

    run(scenario)


def test_room_beside_what_is_in_memory() -> None:
    async def scenario() -> None:
        node, free = FakeNode(25), FakeNode()
        a, b = node.make("a"), free.make("b")
        await node.want(a.model)
        await free.want(b.model)
        assert [node.has_room(nbytes) for nbytes in (10, 15, 16)] == [True, True, False]
        assert free.has_room(1 << 60)

    run(scenario)


def test_standby_ends_too_where_its_processes_take_too_much() -> None:
    async def scenario() -> None:
        node = FakeNode(10)
        a, b = node.make("a"), node.make("b", can_sleep=False)
        await node.want(a.model)
        await node.want(b.model)
        assert node.states() == {"a": S.PACKED, "b": S.READY}
        await node.want(a.model)
        assert node.states() == {"a": S.READY, "b": S.PACKED}
        assert "sleep" not in b.calls

    run(scenario)


def test_all_that_wait_for_a_model_get_it_with_one_start() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        a.at_once = False
        waiting = [asyncio.ensure_future(node.want(a.model)) for _ in range(5)]
        await settle(lambda: a.calls == ["start"])
        assert a.model.waiting == 5
        a.become_ready()
        await asyncio.gather(*waiting)
        assert (a.calls, a.model.waiting) == (["start"], 0)

    run(scenario)


def test_a_model_with_requests_is_never_evicted_but_takes_no_new_ones_for_long() -> None:
    async def scenario() -> None:
        node = FakeNode(10, patience_s=2.0)
        a, b = node.make("a"), node.make("b", ready_bytes=9)
        await node.want(a.model)
        a.requests = 1
        wanted = asyncio.ensure_future(node.want(b.model))
        for _ in range(20):
            await asyncio.sleep(0)
        assert a.model.serves
        node.clock.now_s += 2.0
        await settle(lambda: not a.model.serves)
        assert a.model.state is S.READY
        late = asyncio.ensure_future(node.want(a.model))
        for _ in range(20):
            await asyncio.sleep(0)
        assert node.states() == {"a": S.READY, "b": S.ON_DISK}
        a.requests = 0
        await wanted
        await late
        assert a.model.serves
        assert b.calls[0] == "start"

    run(scenario)


def test_a_busy_model_that_counts_for_more_does_not_yield() -> None:
    async def scenario() -> None:
        node = FakeNode(10, patience_s=0.0)
        a, b = node.make("a", priority=1), node.make("b")
        await node.want(a.model)
        a.requests = 1
        wanted = asyncio.ensure_future(node.want(b.model))
        for _ in range(20):
            await asyncio.sleep(0)
        assert a.model.serves
        wanted.cancel()
        await settle(lambda: b.model.bringing is None)
        assert b.calls == []

    run(scenario)


def test_who_gave_up_waiting_moves_nobody_and_a_yielding_model_serves_again() -> None:
    async def scenario() -> None:
        node = FakeNode(10, patience_s=0.0)
        a, b = node.make("a"), node.make("b")
        await node.want(a.model)
        a.requests = 1
        wanted = asyncio.ensure_future(node.want(b.model))
        await settle(lambda: not a.model.serves)
        wanted.cancel()
        await settle(lambda: a.model.serves)
        assert (b.calls, a.calls) == ([], ["start"])

    run(scenario)


def test_a_model_that_just_came_stays_its_time() -> None:
    async def scenario() -> None:
        node = FakeNode(10, min_residence_s=5.0)
        a, b = node.make("a"), node.make("b", ready_bytes=9)
        await node.want(a.model)
        wanted = asyncio.ensure_future(node.want(b.model))
        for _ in range(20):
            await asyncio.sleep(0)
        assert a.model.serves
        node.clock.now_s += 5.0
        await wanted
        assert a.model.state is S.STANDBY

    run(scenario)


def test_a_model_that_came_back_at_once_leaves_soon() -> None:
    async def scenario() -> None:
        node = FakeNode(11, min_residence_s=5.0)
        a, b = node.make("a"), node.make("b", ready_bytes=9)
        for model in (a.model, b.model, a.model):  # a comes back from standby
            node.clock.now_s += 5.0
            await node.want(model)
        assert b.model.state is S.STANDBY
        node.clock.now_s += 0.5
        await node.want(b.model)
        assert a.model.state is S.STANDBY

    run(scenario)


def test_pinned_models_and_those_of_the_start_are_loaded_first_and_pinned_ones_stay() -> None:
    async def scenario() -> None:
        node = FakeNode(20)
        pinned, first, c = node.make("p", pinned=True), node.make("f", at_start=True), node.make("c")
        await node.start()
        assert node.states() == {"p": S.READY, "f": S.READY, "c": S.ON_DISK}
        node.clock.now_s += 100
        await node.want(c.model)
        assert (pinned.calls, first.calls) == (["start"], ["start", "sleep", "stop"])

    run(scenario)


def test_an_idle_model_sleeps_and_a_busy_one_does_not() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a, b, c = node.make("a", idle_s=10.0), node.make("b", idle_s=10.0), node.make("c")
        for engines in (a, b, c):
            await node.want(engines.model)
        b.requests = 1
        node.clock.now_s += 11
        node.sweep()
        await settle(lambda: a.model.state is S.STANDBY)
        assert b.model.state is c.model.state is S.READY
        b.requests = 0
        node.clock.now_s += 9
        node.sweep()
        await asyncio.sleep(0)
        assert b.model.state is S.READY
        c.model.used(0.0)
        node.sweep()
        await settle(lambda: c.model.state is S.STANDBY)
        b.model.used(-1)
        node.clock.now_s += 100
        node.sweep()
        await asyncio.sleep(0)
        assert b.model.state is S.READY

    run(scenario)


def test_requests_that_a_sleeping_model_was_left_with_wake_it() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        await node.sleep(a.model, 1.0)
        a.requests = 1
        node.sweep()
        await settle(lambda: a.model.serves)

    run(scenario)


def test_engines_that_do_not_start_are_left_alone_for_longer_each_time() -> None:
    async def scenario() -> None:
        node = FakeNode(retry_s=5.0, max_retry_s=8.0)
        a = node.make("a")
        a.refuses = "no process"
        for wait_s in (5, 8, 8):
            with pytest.raises(EngineDeadError, match="no process") as caught:
                await node.want(a.model)
            assert caught.value.retry_after_s == wait_s
            assert a.model.state is S.QUARANTINED
            with pytest.raises(EngineDeadError, match="tried again in"):
                await node.want(a.model)
            node.clock.now_s += wait_s
        assert a.calls == ["start"] * 3
        a.refuses = ""
        await node.want(a.model)
        assert (a.model.state, a.model.failures) == (S.READY, 0)

    run(scenario)


def test_a_load_that_ends_badly_is_told_to_all_that_wait() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        a.at_once = False
        waiting = [asyncio.ensure_future(node.want(a.model)) for _ in range(2)]
        await settle(lambda: a.calls == ["start"])
        a.tell(GaveUp("the weights are damaged", 1))
        for one in waiting:
            with pytest.raises(EngineDeadError, match="the weights are damaged"):
                await one
        await settle(lambda: a.calls == ["start", "stop"])

    run(scenario)


def test_a_load_that_is_killed_is_tried_again_at_once_but_not_for_ever() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        a.at_once = False
        wanted = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.calls == ["start"])
        for times in range(1, node_module.KILLED_STARTS + 1):
            a.tell(GaveUp("killed by SIGKILL", 1, was_killed=True))
            await settle(lambda times=times: a.calls.count("start") == times + 1)
            assert a.model.state is S.LOADING
        a.tell(GaveUp("killed by SIGKILL", 1, was_killed=True))
        with pytest.raises(EngineDeadError, match="killed by SIGKILL"):
            await wanted
        assert a.model.state is S.QUARANTINED

    run(scenario)


def test_the_other_engine_that_wakes_serves_while_one_that_died_is_loaded_again() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        await node.sleep(a.model, 1.0)
        a.at_once = False
        wanted = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.model.state is S.WAKING)
        a.die()
        assert a.model.state is S.LOADING
        a.awake()
        await wanted
        assert a.model.state is S.READY

    run(scenario)


def test_an_engine_that_dies_in_standby_is_not_started_again() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        await node.sleep(a.model, 1.0)
        a.die()
        await settle(lambda: a.model.state is S.PACKED)
        assert a.calls == ["start", "sleep", "stop"]
        await node.want(a.model)
        assert a.calls[-1] == "start"

    run(scenario)


@pytest.mark.parametrize("when", [S.READY, S.WAKING])
def test_an_engine_that_dies_while_it_is_wanted_comes_again_by_itself(when: State) -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        wanted = None
        if when is S.WAKING:
            await node.sleep(a.model, 1.0)
            a.at_once = False
            wanted = asyncio.ensure_future(node.want(a.model))
            await settle(lambda: a.model.state is S.WAKING)
        a.die()
        assert a.model.state is S.LOADING
        a.become_ready()
        assert a.model.serves
        if wanted is not None:
            await wanted
        assert a.calls.count("start") == 1

    run(scenario)


def test_sleep_and_unload_wait_for_requests_and_say_when_these_do_not_end() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.want(a.model)
        a.requests = 1
        with pytest.raises(EngineDeadError, match="requests that have not ended"):
            await node.sleep(a.model, 0.0)
        assert a.model.serves
        unloading = asyncio.ensure_future(node.unload(a.model, 10.0))
        await settle(lambda: not a.model.serves)
        a.requests = 0
        await unloading
        assert a.model.state is S.PACKED
        await node.unload(a.model, 0.0)
        await node.sleep(a.model, 0.0)
        assert a.model.state is S.PACKED

    run(scenario)


def test_unload_ends_a_load_a_standby_and_a_quarantine() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a, b, c = node.make("a"), node.make("b"), node.make("c")
        a.at_once = False
        waiting = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.model.state is S.LOADING)
        waiting.cancel()
        await node.unload(a.model, 0.0)
        await node.want(b.model)
        await node.sleep(b.model, 0.0)
        await node.unload(b.model, 0.0)
        c.refuses = "no process"
        with pytest.raises(EngineDeadError):
            await node.want(c.model)
        await node.unload(c.model, 0.0)
        assert node.states() == {"a": S.ON_DISK, "b": S.PACKED, "c": S.ON_DISK}

    run(scenario)


def test_a_node_that_ends_brings_nothing_more() -> None:
    async def scenario() -> None:
        node = FakeNode()
        a = node.make("a")
        await node.close()
        with pytest.raises(EngineDeadError, match="shutting down"):
            await node.want(a.model)

    run(scenario)
