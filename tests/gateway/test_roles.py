"""Engines with roles: the prompt is computed by one, and another one goes on."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from fake_engine import FakeEngine
from test_replicas import ANSWER, Scene, Sink, until, work

from firelane.engine_state import Assigned, LinkState
from firelane.errors import RequestError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import NoRecovery, Resume
from firelane.gateway.engines.roles.roles import change_role, take_role
from firelane.gateway.engines.routing.routing import (
    BUSY_TOKENS,
    CHUNK_TOKENS,
    QUEUE_TOKENS,
    SLOWER,
    SPARE_TOKENS,
    WORTH_TOKENS,
    Router,
)
from firelane.wire.frames import NewRequest, Sampling

LONG, BUSY = 2 * WORTH_TOKENS, 4 * BUSY_TOKENS
P, D, BOTH = "prefill", "decode", "both"


def play(scenario, *roles):
    async def run():
        scene = Scene(count=len(roles))
        for i, role in enumerate(roles):
            await scene.bring_up(i, role=role, engine_id=f"e{i}")
        try:
            await asyncio.wait_for(scenario(scene), 120)
        finally:
            scene.close()

    asyncio.run(run())


def told(engine: FakeEngine):
    return [(r.output_start, r.sampling.max_tokens, r.pages_at) for r in engine.submitted]


def chunk_limits(engine: FakeEngine):
    return [request.chunk_tokens for request in engine.submitted]


async def handed_over(scene, count=1):
    """Prompts are computed."""
    for engine in scene.engines:
        if engine.running:
            engine.step()
    await until(lambda: scene.set.handed_over == count)
    await asyncio.sleep(0.002)


def test_a_prompt_is_computed_by_one_engine_and_goes_on_at_another():
    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        assert scene.where() == [[request_id], []]
        assert told(scene.engines[0]) == [(-1, 1, "")]
        (expected,) = scene.engines[1].expected
        assert (expected.id, expected.pages_at) == (request_id, "e0")
        await handed_over(scene)
        assert sink.tokens == ANSWER[:1]
        assert scene.where() == [[], [request_id]]
        assert told(scene.engines[1]) == [(LONG, len(ANSWER), "e0")]
        assert len(scene.engines[1].submitted[0].prompt) == 4 * (LONG + 1)
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)
        assert [*map(work, scene.links)] == [0, 0]

    play(scenario, P, D)


def test_engines_of_one_machine_are_connected_already():
    """Also where they give pages to those of other servers."""

    async def scenario(scene):
        for place, role in enumerate((P, D)):
            await scene.bring_up(place, role=role, engine_id=f"e{place}", pages_address="10.0.0.1:5600")
        assert [link.pages_address for link in scene.links] == ["", ""]
        await scene.submit(tokens=LONG)
        await handed_over(scene)
        requests = [*scene.engines[1].expected, *scene.engines[1].submitted]
        assert [(one.pages_at, one.pages_address) for one in requests] == [("e0", "")] * 2

    play(scenario, P, D)


@pytest.mark.parametrize(
    ("tokens", "sampling", "roles", "where"),
    [
        (WORTH_TOKENS - 1, {}, (P, D), 1),
        (LONG, {"max_tokens": 1}, (P, D), 0),
        (LONG, {}, (P, P), 0),
        (LONG, {}, (D, D), 0),
        (LONG, {}, ("both", "both"), 0),
    ],
    ids=["short prompt", "one token", "no decode", "no prefill", "no roles"],
)
def test_one_engine_does_all(tokens, sampling, roles, where):
    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=tokens, **sampling)
        assert scene.where()[where] == [request_id]
        await scene.finish(sink)
        assert sink.tokens == ANSWER[: sampling.get("max_tokens")]
        assert scene.set.handed_over == 0

    play(scenario, *roles)


def test_while_prompts_wait_an_engine_for_decode_takes_those_that_it_computes_sooner():
    """No engine has told its speed, so that prompts count as wholes until they draw."""

    async def scenario(scene):
        first, _ = await scene.submit(tokens=BUSY)
        assert scene.where() == [[first], []]
        second, sink = await scene.submit(tokens=LONG)
        assert scene.where() == [[first], [second]]
        assert told(scene.engines[1]) == [(-1, len(ANSWER), "")]
        third, _ = await scene.submit(tokens=BUSY)
        assert scene.where() == [[first], [second, third]]
        fourth, _ = await scene.submit(tokens=BUSY)  # not sooner there
        assert scene.where() == [[first, fourth], [second, third]]
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)

    play(scenario, P, D)


def test_prompts_keep_to_short_chunks_at_engines_for_decode_alone():
    async def scenario(scene):
        await scene.submit(tokens=BUSY)
        await scene.submit(tokens=LONG)
        assert [*map(chunk_limits, scene.engines)] == [[0], [CHUNK_TOKENS]]
        await handed_over(scene)
        assert [*map(chunk_limits, scene.engines)] == [[0], [CHUNK_TOKENS] * 2]
        assert CHUNK_TOKENS > 0

    play(scenario, P, D)


def test_a_prompt_goes_on_without_the_limit_of_an_engine_that_has_died():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=WORTH_TOKENS - 1)
        assert chunk_limits(scene.engines[1]) == [CHUNK_TOKENS]
        scene.engines[1].die()
        await until(lambda: scene.engines[0].running)
        assert chunk_limits(scene.engines[0]) == [0]
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, D)


@pytest.mark.parametrize(("ahead", "goes_there"), [(-2, False), (2, True)])
def test_a_prompt_waits_for_as_long_as_beside_decodes_it_takes_longer(ahead, goes_there):
    own = 4000

    async def scenario(scene):
        first, _ = await scene.submit(tokens=BUSY_TOKENS + round((SLOWER - 1) * own) + ahead)
        second, _ = await scene.submit(tokens=own)
        expected = [[first], [second]] if goes_there else [[first, second], []]
        await until(lambda: scene.where() == expected)

    play(scenario, P, D)


@pytest.mark.parametrize(
    ("step_ms", "token_ms", "goes_there"), [(8.0, 0.025, True), (45.0, 2.3, False), (45.0, 0.0, True)]
)
def test_an_engine_whose_streams_would_wait_long_takes_a_prompt_only_from_a_long_queue(
    step_ms, token_ms, goes_there
):
    async def scenario(scene):
        scene.links[1].step_ms, scene.links[1].token_ms = step_ms, token_ms
        first, _ = await scene.submit(tokens=QUEUE_TOKENS)
        second, _ = await scene.submit(tokens=1000)
        expected = [[first], [second]] if goes_there else [[first, second], []]
        await until(lambda: scene.where() == expected)
        if not goes_there:
            third, _ = await scene.submit(tokens=1000)
            fourth, _ = await scene.submit(tokens=1000)  # it has one
            await until(lambda: scene.where() == [[first, second, fourth], [third]])

    play(scenario, P, D)


def test_an_engine_for_decode_takes_no_more_prompts_than_it_can_spare():
    """Its own streams wait for each of them."""

    async def scenario(scene):
        prompts = [(await scene.submit(tokens=8 * SPARE_TOKENS))[0]]
        there = [(await scene.submit(tokens=SPARE_TOKENS // 2))[0] for _ in range(3)]
        await until(lambda: scene.where() == [prompts + there[2:], there[:2]])

    play(scenario, P, D)


def test_pages_that_travel_are_no_work_for_an_engine_that_decodes():
    async def scenario(scene):
        prompts = [(await scene.submit(tokens=2 * BUSY))[0]]
        await handed_over(scene)
        assert scene.where() == [[], prompts]
        assert scene.links[1].prefill_tokens < WORTH_TOKENS
        prompts += [(await scene.submit(tokens=2 * BUSY))[0] for _ in range(2)]
        assert scene.where() == [prompts[1:2], [prompts[0], prompts[2]]]

    play(scenario, P, D)


def test_embeddings_wait_for_an_engine_for_prefill():
    async def scenario(scene):
        first, _ = await scene.submit(tokens=BUSY)
        scene.set.submit(
            NewRequest(id=99, prompt=b"\1\0\0\0" * LONG, sampling=Sampling(), pooling="last"), Sink()
        )
        await until(lambda: scene.where() == [[first, 99], []])

    play(scenario, P, D)


def test_a_first_token_that_stops_ends_the_request():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG, stop_token_ids=[ANSWER[0]])
        await scene.finish(sink)
        assert sink.tokens == ANSWER[:1]
        assert scene.set.handed_over == 0

    play(scenario, P, D)


def test_engines_whose_pages_do_not_travel_hand_nothing_over():
    async def scenario(scene):
        scene.engines[0].send(scene.engines[0].ready(role=P))
        await until(lambda: scene.links[0].ready.engine_id == "")
        _, sink = await scene.submit(tokens=LONG)
        await scene.finish(sink)
        assert sink.tokens == ANSWER
        assert scene.set.handed_over == 0

    play(scenario, P, D)


def test_the_prefill_engine_dies_before_its_token():
    async def scenario(scene):
        request_id, sink = await scene.submit(tokens=LONG)
        scene.engines[0].die()
        await until(lambda: scene.links[0].state is LinkState.DEAD)
        await asyncio.sleep(0.002)
        assert scene.where() == [[], [request_id]]
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, D)


def test_the_decode_engine_dies_and_another_one_has_the_pages_too():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        scene.engines[1].step()
        await until(lambda: len(sink.tokens) == 2)
        scene.engines[1].die()
        await until(lambda: scene.engines[2].running)
        assert told(scene.engines[2]) == [(LONG, len(ANSWER), "e0")]
        await scene.finish(sink)
        assert (sink.tokens, sink.started) == (ANSWER, 1)

    play(scenario, P, D, D)


def test_without_a_decode_engine_the_prefill_engine_goes_on():
    async def scenario(scene):
        _, sink = await scene.submit(tokens=LONG)
        await handed_over(scene)
        scene.engines[1].die()
        await until(lambda: scene.engines[0].running)
        assert scene.engines[0].submitted[-1].sampling.max_tokens == len(ANSWER)
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario, P, D)


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
        assert scene.set.handed_over == 1
        for name in ("1", "2"):
            change_role(scene.set, name, BOTH)
        assert [link.role for link in scene.links] == [BOTH] * 3
        sinks = [(await scene.submit(tokens=LONG))[1] for _ in range(3)]
        assert [len(ids) for ids in scene.where()] == [1, 1, 1]
        await scene.finish(*sinks)
        assert {tuple(one.tokens) for one in (sink, other, *sinks)} == {tuple(ANSWER)}
        assert scene.set.handed_over == 1

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
        assert (scene.set.parked, scene.links[0].in_flight) == (1, 0)
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
        assert link.role == "both"
        await scene.bring_up(0, role=P, engine_id="e3")
        assert (link.role, link.engine_id) == (D, "e3")

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
        assert scene.links[1].role == D  # its own
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
        scene.links[0].serve(msgspec.structs.replace(scene.links[0].ready, engine_id=""))
        with pytest.raises(RequestError, match="--prefill and --decode"):
            change_role(scene.set, "0", D)
        assert [link.role for link in scene.links] == [P, D]

    play(scenario, P, D)
