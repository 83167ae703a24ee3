"""Models whose files come from elsewhere: pulled when they are asked for, or said to; taken away again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from firelane.errors import EngineDeadError, FirelaneError, RequestError
from firelane.node import node as node_module
from firelane.node.states import State
from tests.node.fake_engines import FakeEngines, FakeFiles, FakeNode

S = State


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_module, "POLL_S", 0.0)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 10))


async def settle(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


def absent(**policy) -> tuple[FakeNode, FakeEngines, FakeFiles]:
    node, files = FakeNode(), FakeFiles()
    return node, node.make("a", files=files, **policy), files


def test_a_request_brings_the_files_first() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.goes_on.clear()
        assert a.model.state is S.ABSENT
        asked = [asyncio.ensure_future(node.want(a.model)) for _ in range(3)]
        await settle(lambda: a.model.state is S.PULLING)
        assert (a.calls, a.model.pulled, a.model.held_bytes) == ([], (5, 10), 0)
        files.goes_on.set()
        await asyncio.gather(*asked)
        assert (files.calls, a.calls, a.model.state) == (["pull"], ["start"], S.READY)

    run(scenario)


def test_pinned_models_that_are_absent_are_pulled_at_the_start() -> None:
    async def scenario() -> None:
        node, a, files = absent(pinned=True)
        await node.start()
        await settle(lambda: a.model.state is S.READY)
        assert files.calls == ["pull"]

    run(scenario)


def test_a_pull_of_files_that_do_not_come_is_left_alone_for_a_while() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.refuses = "no such model on the hub"
        with pytest.raises(EngineDeadError, match="no such model on the hub"):
            await node.want(a.model)
        assert a.model.state is S.QUARANTINED
        with pytest.raises(EngineDeadError, match="tried again in 5 s"):
            await node.want(a.model)
        files.refuses = ""
        node.clock.now_s += 5
        await node.want(a.model)
        assert (files.calls, a.model.state) == (["pull", "pull"], S.READY)

    run(scenario)


def test_pulls_that_were_asked_for_are_one_and_change_nothing_of_what_serves() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        await asyncio.gather(*(node.pulls.pull(a.model) for _ in range(3)))
        assert (files.calls, a.model.state) == (["pull whole"], S.ON_DISK)
        await node.want(a.model)
        await node.pulls.pull(a.model)
        assert files.calls == ["pull whole"]
        await node.unload(a.model, 0.0)
        files.refuses = "no network"
        with pytest.raises(FirelaneError, match="no network"):
            await node.pulls.pull(a.model)
        assert (a.model.state, a.model.reason) == (S.PACKED, "no network")

    run(scenario)


def test_a_request_waits_for_a_pull_that_was_asked_for() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.goes_on.clear()
        pulling = asyncio.ensure_future(node.pulls.pull(a.model))
        await settle(lambda: a.model.state is S.PULLING)
        asked = asyncio.ensure_future(node.want(a.model))
        await asyncio.sleep(0)
        files.goes_on.set()
        await asyncio.gather(pulling, asked)
        assert (files.calls, a.model.state) == (["pull whole"], S.READY)

    run(scenario)


def test_whoever_asked_may_go_and_unload_ends_a_pull() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.goes_on.clear()
        pulling = asyncio.ensure_future(node.pulls.pull(a.model))
        await settle(lambda: a.model.state is S.PULLING)
        pulling.cancel()
        await asyncio.sleep(0)
        assert a.model.state is S.PULLING
        again = asyncio.ensure_future(node.pulls.pull(a.model))
        await asyncio.sleep(0)
        await node.unload(a.model, 0.0)
        with pytest.raises(FirelaneError, match="was ended"):
            await again
        assert a.model.state is S.ABSENT

    run(scenario)


def test_files_are_removed_of_a_model_that_rests_alone() -> None:
    async def scenario() -> None:
        node, a, _ = absent()
        await node.want(a.model)
        with pytest.raises(RequestError, match="a is ready: unload it first"):
            await node.pulls.remove(a.model)
        await node.unload(a.model, 0.0)
        assert await node.pulls.remove(a.model) == 10
        assert a.model.state is S.ABSENT
        await node.want(a.model)
        assert a.model.state is S.READY

    run(scenario)


def test_files_of_a_quarantined_model_are_removed_too_and_what_fails_is_told() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.are_here, a.refuses = True, "damaged weights"
        a.model.settle()
        with pytest.raises(EngineDeadError, match="damaged weights"):
            await node.want(a.model)
        files.refuses = "read-only drive"
        with pytest.raises(FirelaneError, match="read-only drive"):
            await node.pulls.remove(a.model)
        assert a.model.state is S.QUARANTINED
        files.refuses = ""
        await node.pulls.remove(a.model)
        assert a.model.state is S.ABSENT

    run(scenario)


def test_files_that_are_being_brought_are_not_removed() -> None:
    async def scenario() -> None:
        node, a, files = absent()
        files.goes_on.clear()
        asked = asyncio.ensure_future(node.want(a.model))
        await settle(lambda: a.model.state is S.PULLING)
        with pytest.raises(RequestError, match="a is pulling"):
            await node.pulls.remove(a.model)
        files.goes_on.set()
        await asked

    run(scenario)
