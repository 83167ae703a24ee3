"""Engines change their roles while requests run, and requests go on."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from replica_scene import ANSWER, until
from role_scene import BOTH, LONG, D, P, chunk_limits, handed_over, play, told

from firelane.engine_state import Assigned, LinkState
from firelane.errors import RequestError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
from firelane.gateway.engines.roles.roles import change_role, take_role
from firelane.gateway.engines.routing.routing import CHUNK_TOKENS, Router


def test_streams_of_an_engine_that_becomes_one_for_prefill_go_on_with_its_pages():
    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        assert scene.where() == [[], [request_id], []]
        scene.engines[1].step()
        await until(lambda: len(sink.tokens) == 2)
        change_role(scene.set, "1", P)
        await asyncio.sleep(0.002)
        assert scene.where() == [[], [], [request_id]]
        assert told(scene.engines[2]) == [(LONG, len(ANSWER), "e1")]
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)
        more = [(await scene.submit(tokens=LONG))[0] for _ in range(2)]
        assert scene.where() == [more[:1], more[1:], []]

    play(scenario, P, D, D)


def test_prompts_of_an_engine_that_becomes_one_for_decode_end_there():
    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        change_role(scene.set, "0", D)
        await asyncio.sleep(0.002)
        assert scene.where() == [[request_id], [], []]
        other_id, _ = await scene.submit(tokens=LONG)
        assert scene.where() == [[request_id], [other_id], []]
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, P, D)


def test_engines_do_all_again():
    """One beside engines with roles does all of what it gets; where all do, nothing is handed over."""

    async def scenario(scene):
        change_role(scene.set, "0", BOTH)
        first, sink = await scene.submit(tokens=LONG)
        second, other = await scene.submit(tokens=LONG)
        assert scene.where() == [[first], [second], []]
        await scene.finish(sink, other)
        assert [tokens for _, tokens, _ in told(scene.engines[0])] == [len(ANSWER)]
        assert scene.set.figures.handed_over == 1
        for name in ("1", "2"):
            change_role(scene.set, name, BOTH)
        assert [link.load.role for link in scene.links] == [BOTH] * 3
        sinks = [(await scene.submit(tokens=LONG))[1] for _ in range(3)]
        assert [len(ids) for ids in scene.where()] == [1, 1, 1]
        await scene.finish(*sinks)
        assert {tuple(one.tokens) for one in (sink, other, *sinks)} == {tuple(ANSWER)}
        assert scene.set.figures.handed_over == 1

    play(scenario, P, P, D)


def test_the_limit_of_chunks_follows_the_roles():
    async def scenario(scene):
        for role, limit in ((D, CHUNK_TOKENS), (BOTH, 0), (P, 0), (D, CHUNK_TOKENS)):
            change_role(scene.set, "0", role)
            _, sink = await scene.submit(tokens=LONG)
            assert chunk_limits(scene.engines[0])[-1] == limit
            await scene.finish(sink)
            assert sink.tokens == ANSWER

    play(scenario, BOTH)


def test_two_engines_change_places():
    """In between one kind is missing, and all engines do all."""

    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        change_role(scene.set, "1", P)
        change_role(scene.set, "0", D)
        await scene.finish(sink)
        assert sink.tokens == ANSWER
        request_id, sink = await scene.submit(tokens=LONG)
        assert scene.where() == [[], [request_id]]
        await handed_over(scene, count=2)
        assert scene.where() == [[request_id], []]
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, D)


def test_a_request_never_comes_back_to_an_engine_that_may_have_it_still():
    """The engine that it leaves has the least work, and would get it again."""

    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        others = [await scene.submit(tokens=LONG) for _ in range(3)]
        change_role(scene.set, "1", P)
        await asyncio.sleep(0.002)
        assert scene.where() == [sorted([request_id, *(other for other, _ in others)]), []]
        await scene.finish(sink, *(other for _, other in others))
        assert (sink.tokens, sink.started) == (ANSWER, 1)
        assert [link.state for link in scene.links] == [LinkState.READY, LinkState.READY]

    play(scenario, P, D)


def test_a_request_that_no_other_engine_takes_comes_back_once_the_engine_has_let_it_go():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG)
        scene.engines[0].step()
        await until(lambda: len(sink.tokens) == 1)
        assert scene.set.move(scene.links[0], 1) == 1
        assert (len(scene.set.dispatcher.parked), scene.links[0].in_flight) == (1, 0)
        await until(lambda: scene.links[0].in_flight == 1)
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)
        assert scene.links[0].state is LinkState.READY

    play(scenario, D)


def test_an_engine_that_starts_again_keeps_its_role():
    async def scenario(scene):
        link = change_role(scene.set, "0", D)
        scene.engines[0].die()
        await until(lambda: link.state is LinkState.DEAD)
        assert link.load.role == "both"
        await scene.bring_up(0, role=P, engine_id="e3")
        assert (link.load.role, link.load.engine_id) == (D, "e3")

    play(scenario, P, D)


def test_other_gateways_hear_of_each_role():
    async def scenario(scene):
        told = []

        def tell(_, event):
            if isinstance(event, Assigned):
                told.append(event.role)

        scene.links[0]._tell = tell
        for role in (D, D, P):
            change_role(scene.set, "0", role)
        assert told == [D, P]
        successor = EngineLink(name="0", tell=tell)
        scene.set.add(successor)
        assert (successor.engine.assigned_role, told[2:]) == (P, [P])
        scene.set.remove(successor)

    play(scenario, P, D)


def test_a_gateway_moves_its_own_requests_as_it_is_told_of_a_role():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        scene.engines[1].step()
        await until(lambda: len(sink.tokens) == 2)
        for _ in range(2):
            take_role(scene.set, scene.links[1], P)
        await until(lambda: scene.engines[2].running)
        assert told(scene.engines[2]) == [(LONG, len(ANSWER), "e1")]
        take_role(scene.set, scene.links[1], "")
        assert scene.links[1].load.role == D  # its own
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)

    play(scenario, P, D, D)


def test_another_router_and_recovery_for_what_comes_from_now_on():
    async def scenario(scene):
        scene.set.set_up(Resume(), Router.of("least-requests", shares_pages=True))
        await until(lambda: all(engine.tells_pages for engine in scene.engines))
        scene.set.set_up(NoRecovery(), Router.of("least-requests"))
        _, sink = await scene.submit(tokens=LONG)
        for engine in scene.engines:
            engine.die()
        await until(lambda: sink.error is not None)

    play(scenario, BOTH, BOTH)


def test_roles_that_cannot_be_changed():
    async def scenario(scene):
        with pytest.raises(RequestError, match="no engine '7' serves: there are 0, 1"):
            change_role(scene.set, "7", P)
        scene.links[0].lifecycle.serve(msgspec.structs.replace(scene.links[0].ready, engine_id=""))
        with pytest.raises(RequestError, match="--prefill and --decode"):
            change_role(scene.set, "0", D)
        assert [link.load.role for link in scene.links] == [P, D]

    play(scenario, P, D)
