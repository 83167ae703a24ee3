"""Engines with roles: the prompt is computed by one, and another one goes on."""

from __future__ import annotations

import asyncio

import pytest
from replica_scene import ANSWER, Sink, until, work
from role_scene import BUSY, LONG, D, P, chunk_limits, handed_over, play, told

from firelane.engine_state import LinkState
from firelane.gateway.engines.routing.routing import (
    BUSY_TOKENS,
    CHUNK_TOKENS,
    QUEUE_TOKENS,
    SLOWER,
    SPARE_TOKENS,
    WORTH_TOKENS,
)
from firelane.wire.frames import NewRequest, Sampling


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
        assert [link.load.pages_address for link in scene.links] == ["", ""]
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
        assert scene.set.figures.handed_over == 0

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
        scene.links[1].load.step_ms, scene.links[1].load.token_ms = step_ms, token_ms
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
        assert scene.links[1].load.prefill_tokens < WORTH_TOKENS
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
        assert scene.set.figures.handed_over == 0

    play(scenario, P, D)


def test_engines_whose_pages_do_not_travel_hand_nothing_over():
    async def scenario(scene):
        scene.engines[0].send(scene.engines[0].ready(role=P))
        await until(lambda: scene.links[0].ready.engine_id == "")
        _, sink = await scene.submit(tokens=LONG)
        await scene.finish(sink)
        assert sink.tokens == ANSWER
        assert scene.set.figures.handed_over == 0

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
