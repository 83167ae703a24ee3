"""Several engines as one: requests go where engines say that pages are, and engines are asked for them."""

from __future__ import annotations

from replica_scene import play, until

from firelane.engine_state import LinkState
from firelane.gateway.engines.routing.page_record import PageRecord
from firelane.gateway.engines.routing.policies import PageAware
from firelane.gateway.engines.routing.routing import Router
from firelane.wire.cache_events import PageChanges, numbers_bytes
from firelane.wire.page_names import PAGE_TOKENS, page_names

LONG = b"\7\0\0\0" * (4 * PAGE_TOKENS)


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
