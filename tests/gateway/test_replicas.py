"""Several engines as one: who gets a request, and where it goes when an engine ends."""

from __future__ import annotations

import asyncio

import pytest
from replica_scene import ANSWER, Sink, play, until, work

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines.recovery.recovery import (
    MOST_LOSSES,
    PROGRESS_TOKENS,
    SOLO_DEATHS,
    NoRecovery,
    Resume,
)
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.wire.frames import EngineStats, NewRequest, Sampling


def test_a_request_goes_to_the_engine_with_the_least_work():
    async def scenario(scene):
        long, _ = await scene.submit(tokens=100)
        ids = [(await scene.submit(tokens=10, prompt=bytes([i, 0, 0, 0]) * 10))[0] for i in range(3)]
        assert scene.where() == [[long], ids]
        for engine in scene.engines:
            engine.step()  # prompts are computed: now each counts as one
        await until(lambda: work(scene.links[0]) == 1)
        assert [*map(work, scene.links)] == [1, 3]
        last, _ = await scene.submit()
        assert scene.where() == [[long, last], ids]

    play(scenario)


def test_requests_with_one_prompt_stay_together():
    """The choices of one client request share their prefix."""

    async def scenario(scene):
        prompt = b"\1\0\0\0" * 50
        ids = [(await scene.submit(prompt=prompt))[0] for _ in range(3)]
        other, _ = await scene.submit()
        assert scene.where() == [ids, [other]]

    play(scenario)


def test_requests_of_a_dead_engine_go_on_with_another_at_once():
    async def scenario(scene):
        _, one = await scene.submit()
        _, two = await scene.submit(tokens=5)
        for engine in scene.engines:
            engine.step()
            engine.step()
        await until(lambda: len(one.tokens) == len(two.tokens) == 2)
        scene.engines[0].die()
        await until(lambda: len(scene.engines[1].running) == 2)
        assert scene.set.state is LinkState.READY
        await scene.finish(one, two)
        assert one.tokens == two.tokens == ANSWER
        assert one.started == 1
        assert scene.set.figures.deaths == scene.set.figures.resumed == 1

    play(scenario)


@pytest.mark.parametrize("count", [1, 40])
def test_requests_of_engines_that_are_killed_together_go_on(count):
    """The second one has got what the first one had, and not begun it."""

    async def scenario(scene):
        sinks = [(await scene.submit(prompt=bytes([i, 1, 0, 0]) * 4))[1] for i in range(count)]
        for engine in scene.engines:
            engine.max_num_seqs = count
            engine.step()
        await until(lambda: all(len(sink.tokens) == 1 for sink in sinks))
        scene.engines[0].die()
        await until(lambda: len(scene.engines[1].running) == count)
        scene.engines[1].die()
        await until(lambda: scene.set.state is LinkState.DEAD)
        await scene.bring_up(0)
        await scene.finish(*sinks)
        assert all(sink.error is None and sink.tokens == ANSWER for sink in sinks)

    play(scenario)


def test_sizes_and_counters_are_those_of_all():
    async def scenario(scene):
        assert scene.set.ready.max_num_seqs == 16
        assert scene.set.ready.num_blocks == 200
        scene.links[0].load.stats = EngineStats(running=1, steps=5, prompt_tokens=7)
        scene.links[1].load.stats = EngineStats(running=2, steps=8, prompt_tokens=1)
        assert (scene.set.figures.stats.running, scene.set.figures.stats.steps) == (3, 13)
        assert {name: stats.steps for name, stats in scene.set.figures.stats_by_replica.items()} == {
            "0": 5,
            "1": 8,
        }
        scene.engines[0].die()
        await until(lambda: scene.links[0].state is LinkState.DEAD)
        assert scene.set.ready.max_num_seqs == 8
        assert (
            scene.set.figures.stats.running,
            scene.set.figures.stats.steps,
            scene.set.figures.stats.prompt_tokens,
        ) == (2, 13, 8)
        await scene.bring_up(0)
        assert scene.set.ready.max_num_seqs == 16

    play(scenario)


def test_an_engine_of_another_model_is_not_mixed_in():
    async def scenario(scene):
        scene.add("2")
        await scene.bring_up(2, identity="other")
        assert scene.links[2].state is LinkState.DEAD
        assert "model has changed" in scene.links[2].engine.failed.message
        assert len(scene.set.serving) == 2

    play(scenario)


def test_an_engine_is_replaced_under_its_requests():
    """Requests that have not begun leave at once, others when they are moved; late tokens do not count."""

    async def scenario(scene):
        _, begun = await scene.submit()
        scene.engines[0].step()
        scene.engines[0].step()
        await until(lambda: len(begun.tokens) == 2)
        _, waiting = await scene.submit(tokens=5)
        scene.add("0")
        await scene.bring_up(1)
        assert list(scene.set.figures.stats_by_replica) == ["0"]
        old, new = scene.links
        scene.set.retire(old, "replaced")
        await until(lambda: len(scene.engines[1].running) == 1)
        assert old.in_flight == 1
        assert scene.set.move(old, 5) == 1
        assert scene.set.dispatcher.parked.unheard == 2
        scene.engines[0].step()
        await until(lambda: len(scene.engines[1].running) == 2)
        scene.set.remove(old)
        await scene.finish(begun, waiting)
        assert begun.tokens == waiting.tokens == ANSWER
        assert scene.set.links == [new]
        assert scene.set.dispatcher.parked.unheard == scene.set.figures.deaths == 0

    play(scenario, count=1)


def test_what_is_left_in_an_engine_that_is_removed_goes_on():
    async def scenario(scene):
        _, sink = await scene.submit()
        scene.set.remove(scene.links[0])
        await scene.finish(sink)
        assert sink.tokens == ANSWER

    play(scenario)


def test_closed_it_fails_what_is_in_flight_and_takes_nothing():
    async def scenario(scene):
        _, sink = await scene.submit()
        scene.set.close()
        assert isinstance(sink.error, EngineDeadError)
        with pytest.raises(EngineDeadError):
            await scene.submit()

    play(scenario)


def test_parked_requests_fail_when_it_is_closed():
    async def scenario(scene):
        scene.engines[0].die()
        await until(lambda: scene.set.state is LinkState.DEAD)
        _, sink = await scene.submit()
        scene.set.close()
        assert "closing" in str(sink.error)
        assert scene.set.in_flight == 0

    play(scenario, count=1)


def test_without_engines_it_says_so():
    empty = ReplicaSet()
    assert (empty.state, empty.reason, empty.ready) == (LinkState.DEAD, "there is no engine", None)
    with pytest.raises(EngineDeadError):
        empty.submit(NewRequest(id=1, prompt=b"", sampling=Sampling()), Sink())


def test_the_first_engine_is_waited_for_where_another_process_starts_it():
    async def scenario(scene):
        assert (scene.set.state, scene.set.reason) == (LinkState.STARTING, "the engine is starting")
        waiting = asyncio.create_task(scene.set.until_loaded())
        await asyncio.sleep(0)
        scene.add("0")
        await scene.bring_up(0)
        await waiting
        assert scene.set.state is LinkState.READY
        scene.set.remove(scene.links[0])
        assert (scene.set.state, scene.set.reason) == (LinkState.DEAD, "there is no engine")

    play(scenario, count=0, expects_first=True)


@pytest.mark.parametrize(
    ("recovery", "state"), [(Resume(), LinkState.STARTING), (NoRecovery(), LinkState.DEAD)]
)
def test_a_first_engine_that_dies_is_followed_by_another_one(recovery, state):
    """In a process that has never had an engine, where others are replaced."""

    async def scenario(scene):
        scene.add("0")
        await scene.links[0].attach(scene.engines[0].connect())
        scene.engines[0].die()
        await until(lambda: scene.links[0].state is LinkState.DEAD)
        assert scene.set.state is state
        waiting = asyncio.create_task(scene.set.until_loaded())
        await asyncio.sleep(0)
        assert waiting.done() == (state is LinkState.DEAD)
        await scene.bring_up(0)
        await waiting
        assert scene.set.state is LinkState.READY

    play(scenario, count=0, recovery=recovery, expects_first=True)


def test_a_suspect_that_is_accused_has_one_of_two_engines_alone():
    """The other engine takes over the requests of the suspect's engine, and all new ones, until the trial is
    over."""

    async def scenario(scene):
        made = [await scene.submit() for _ in range(4)]
        accused = next(iter(scene.engines[0].running))
        flight = scene.links[0].requests.delivery.flights[accused]
        scene.set.figures.deaths += 1  # after which it is asked how trials go on
        scene.set.dispatcher.parked.accuse(scene.links[0].requests.take_back(1))
        scene.set._observer._trials.try_next()
        await until(lambda: [accused] in scene.where())
        alone = scene.where().index([accused])
        made.append(await scene.submit())
        await until(lambda: sum(map(len, scene.where())) == 5)
        assert len(scene.where()[1 - alone]) == 4
        for _ in range(PROGRESS_TOKENS + 1):
            scene.engines[alone].step()
        await until(lambda: len(flight.tokens) > PROGRESS_TOKENS)
        made.append(await scene.submit())
        assert len(scene.where()[alone]) == 2
        await scene.finish(*(sink for _, sink in made))
        assert [sink.tokens for _, sink in made] == [ANSWER] * 6

    play(scenario)


@pytest.mark.parametrize("count", [1, 2])
def test_of_200_streams_with_one_that_kills_one_fails(count):
    """Engines that die at the first token of the poisonous one; all others end with their own answers."""

    async def scenario(scene):
        made = [await scene.submit(tokens=1 + i % 3) for i in range(200)]
        poison, told = made[117]
        while told.error is None:
            for index, engine in enumerate(scene.engines):
                if scene.links[index].state is not LinkState.READY:
                    await scene.bring_up(index)
                running = poison in engine.running
                engine.step()
                await asyncio.sleep(0.002)
                if running:
                    engine.die()
                    await until(lambda at=index: scene.links[at].state is LinkState.DEAD)
        assert told.error.code == "engine_died_repeatedly"
        for index, link in enumerate(scene.links):
            if link.state is not LinkState.READY:
                await scene.bring_up(index)
        innocent = [sink for request, sink in made if request != poison]
        await scene.finish(*innocent)
        assert all(sink.error is None and sink.tokens == ANSWER for sink in innocent)
        assert scene.set.figures.deaths <= MOST_LOSSES + 1 + SOLO_DEATHS

    play(scenario, count=count)
