"""Several engines as one: who gets a request, and where it goes when an engine ends."""

from __future__ import annotations

import asyncio

import pytest
from fake_engine import FakeEngine

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.recovery.recovery import (
    MOST_LOSSES,
    PROGRESS_TOKENS,
    SOLO_DEATHS,
    NoRecovery,
    Resume,
)
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.policies import PageAware
from firelane.gateway.engines.routing.routing import Router
from firelane.wire.cache_events import PageChanges, numbers_bytes
from firelane.wire.frames import EngineStats, NewRequest, Sampling
from firelane.wire.page_names import PAGE_TOKENS, page_names

ANSWER = list(range(10, 40))


class Sink:
    def __init__(self):
        self.tokens = []
        self.ended = False
        self.error = None
        self.started = 0

    def on_started(self, *_):
        self.started += 1

    def on_token(self, token, _):
        self.tokens.append(token)

    def on_logprobs(self, entry):
        pass

    def on_waiting(self):
        pass

    def ending(self, reason):
        pass

    def on_end(self):
        self.ended = True

    def on_failed(self, error):
        self.error = error


class Scene:
    """Two fake engines, stepped by hand, behind one ReplicaSet."""

    def __init__(self, recovery=None, count=2, router=None):
        self.set = ReplicaSet(recovery=recovery or Resume(), router=router)
        self.links, self.engines = [], []
        for i in range(count):
            self.add(str(i))

    def add(self, name):
        self.links.append(EngineLink(name=name))
        self.engines.append(FakeEngine(lambda *_: ANSWER, 100, held=True))
        self.set.add(self.links[-1])

    async def bring_up(self, index, **changes):
        link, engine = self.links[index], self.engines[index]
        await link.attach(engine.connect())
        engine.send(engine.ready(**changes))
        await until(lambda: link.state is not LinkState.STARTING)

    async def submit(self, tokens=4, prompt=b"", **sampling):
        sink = Sink()
        request = NewRequest(
            id=self.set.next_id(),
            prompt=prompt or b"\1\0\0\0" * tokens,
            sampling=Sampling(**{"max_tokens": len(ANSWER)} | sampling),
        )
        self.set.submit(request, sink)
        await asyncio.sleep(0.002)
        return request.id, sink

    def where(self):
        return [sorted(engine.running) for engine in self.engines]

    async def finish(self, *sinks):
        while not all(sink.ended for sink in sinks):
            for engine in self.engines:
                if engine.sock is not None and engine.sock.fileno() >= 0 and engine.running:
                    engine.step()
            await asyncio.sleep(0.001)

    def close(self):
        self.set.close()
        for engine in self.engines:
            if engine.sock is not None:
                engine.die()


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def play(scenario, **options):
    async def run():
        scene = Scene(**options)
        for i in range(len(scene.links)):
            await scene.bring_up(i)
        try:
            await asyncio.wait_for(scenario(scene), 120)
        finally:
            scene.close()

    asyncio.run(run())


def work(link):
    return link.prefill_tokens + link.sequences


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
        assert scene.set.deaths == scene.set.resumed == 1

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
        scene.links[0].stats = EngineStats(running=1, steps=5, prompt_tokens=7)
        scene.links[1].stats = EngineStats(running=2, steps=8, prompt_tokens=1)
        assert (scene.set.stats.running, scene.set.stats.steps) == (3, 13)
        assert {name: stats.steps for name, stats in scene.set.stats_by_replica.items()} == {"0": 5, "1": 8}
        scene.engines[0].die()
        await until(lambda: scene.links[0].state is LinkState.DEAD)
        assert scene.set.ready.max_num_seqs == 8
        assert (scene.set.stats.running, scene.set.stats.steps, scene.set.stats.prompt_tokens) == (2, 13, 8)
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
    """Those that have not begun leave at once, the others when they are moved; late tokens do not count."""

    async def scenario(scene):
        _, begun = await scene.submit()
        scene.engines[0].step()
        scene.engines[0].step()
        await until(lambda: len(begun.tokens) == 2)
        _, waiting = await scene.submit(tokens=5)
        scene.add("0")
        await scene.bring_up(1)
        assert list(scene.set.stats_by_replica) == ["0"]
        old, new = scene.links
        scene.set.retire(old, "replaced")
        await until(lambda: len(scene.engines[1].running) == 1)
        assert old.in_flight == 1
        assert scene.set.move(old, 5) == 1
        assert scene.set.unheard == 2
        scene.engines[0].step()
        await until(lambda: len(scene.engines[1].running) == 2)
        scene.set.remove(old)
        await scene.finish(begun, waiting)
        assert begun.tokens == waiting.tokens == ANSWER
        assert scene.set.links == [new]
        assert scene.set.unheard == scene.set.deaths == 0

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


LONG = b"\7\0\0\0" * (4 * PAGE_TOKENS)


def test_the_first_engine_is_waited_for_where_another_process_starts_it():
    async def scenario(scene):
        assert (scene.set.state, scene.set.reason) == (LinkState.DEAD, "there is no engine")
        scene.set.expects_first = True
        assert (scene.set.state, scene.set.reason) == (LinkState.STARTING, "the engine is starting")
        waiting = asyncio.create_task(scene.set.until_loaded())
        await asyncio.sleep(0)
        scene.add("0")
        await scene.bring_up(0)
        await waiting
        assert scene.set.state is LinkState.READY
        scene.set.remove(scene.links[0])
        assert (scene.set.state, scene.set.reason) == (LinkState.DEAD, "there is no engine")

    play(scenario, count=0)


@pytest.mark.parametrize(
    ("recovery", "state"), [(Resume(), LinkState.STARTING), (NoRecovery(), LinkState.DEAD)]
)
def test_a_first_engine_that_dies_is_followed_by_another_one(recovery, state):
    """In a process that has never had an engine, where others are replaced."""

    async def scenario(scene):
        scene.set.expects_first = True
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

    play(scenario, count=0, recovery=recovery)


async def tell(scene, index, stored=(), removed=(), **changes):
    """Pages of an engine, as far as the gateway knows them then."""
    engine, heard = scene.engines[index], len(scene.told)
    engine.send(PageChanges(numbers_bytes(stored), numbers_bytes(removed), **changes))
    await until(lambda: len(scene.told) > heard)


class TellingRouter(Router):
    """Remembers that it was told."""

    def __init__(self, told):
        record = PageRecord()
        super().__init__(PageAware(record), PageAware(record), records=[record])
        self._told = told

    def on_pages(self, engine, frame):
        super().on_pages(engine, frame)
        self._told.append(frame)


def play_telling(scenario):
    told = []

    async def telling(scene):
        scene.told = told
        await scenario(scene)

    play(telling, router=TellingRouter(told))


def test_requests_go_where_engines_say_that_pages_are_and_not_where_they_were():
    async def scenario(scene):
        names = page_names(b"", LONG)
        await tell(scene, 1, names, is_whole=True)
        for _ in range(2):
            await scene.submit(prompt=LONG)
        assert [len(ids) for ids in scene.where()] == [0, 2]
        await tell(scene, 0, names, is_whole=True)
        await tell(scene, 1, removed=names)
        await scene.submit(prompt=LONG)
        assert [len(ids) for ids in scene.where()] == [1, 2]

    play_telling(scenario)


def test_an_engine_that_starts_again_has_what_it_says_then():
    async def scenario(scene):
        names = page_names(b"", LONG)
        await tell(scene, 1, names, is_whole=True)
        scene.engines[1].die()
        await until(lambda: scene.links[1].state is LinkState.DEAD)
        await scene.bring_up(1, pid=77)
        await tell(scene, 0, names[:1], is_whole=True)
        await scene.submit(prompt=LONG)
        assert [len(ids) for ids in scene.where()] == [1, 0]
        await tell(scene, 1, names, is_whole=True)
        await scene.submit(prompt=LONG)
        assert [len(ids) for ids in scene.where()] == [1, 1]

    play_telling(scenario)


def test_engines_are_asked_for_their_pages_by_policies_that_want_them():
    async def follows(scene):
        await until(lambda: all(engine.tells_pages for engine in scene.engines))

    async def does_not(scene):
        await scene.submit()
        await until(lambda: any(engine.submitted for engine in scene.engines))
        assert not any(engine.tells_pages for engine in scene.engines)

    for name, scenario in (("page-aware", follows), ("least-time", follows), ("least-tokens", does_not)):
        play(scenario, router=Router.of(name))


def test_a_lone_engine_is_not_asked_for_its_pages_until_there_is_another():
    async def scenario(scene):
        (one,) = scene.engines
        await scene.submit()
        await until(lambda: one.submitted)
        assert not one.tells_pages
        scene.add("1")
        await scene.bring_up(1)
        await until(lambda: one.tells_pages and scene.engines[1].tells_pages)

    play(scenario, count=1, router=Router.of("page-aware"))


def test_a_suspect_that_is_accused_has_one_of_two_engines_alone():
    """What that engine had goes to the other one, which takes what is new, too, until the trial is over."""

    async def scenario(scene):
        made = [await scene.submit() for _ in range(4)]
        accused = next(iter(scene.engines[0].running))
        flight = scene.links[0]._delivery.flights[accused]
        scene.set._parked.accuse(scene.links[0].take_back(1))
        scene.set._parked.try_next()
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
        assert scene.set.deaths <= MOST_LOSSES + 1 + SOLO_DEATHS

    play(scenario, count=count)
