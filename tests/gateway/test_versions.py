"""Requests go to engines that have their adapter and the version of the weights that they began with."""

from __future__ import annotations

import asyncio

from replica_scene import ANSWER, Scene, play, until

from firelane.engine_state import LinkState
from firelane.errors import EngineDeadError
from firelane.wire.adapters import AdaptersServed, LoadAdapter


def scene_of(*ready):
    """A scenario's decorator: engines that are ready with these fields."""

    def decorate(scenario):
        async def run():
            scene = Scene(count=len(ready))
            try:
                for index, fields in enumerate(ready):
                    await scene.bring_up(index, **fields)
                await asyncio.wait_for(scenario(scene), 60)
            finally:
                scene.close()

        return lambda: asyncio.run(run())

    return decorate


@scene_of({}, {"adapters": {"x": "d1"}}, {"adapters": {"x": "d2"}})
async def test_adapters(scene):
    for digest, place in (("d1", 1), ("d2", 2)):
        for _ in range(3):
            number, _ = await scene.submit(adapter=digest)
            assert number in scene.where()[place]
    _, sink = await scene.submit(adapter="d3")
    assert isinstance(sink.error, EngineDeadError)
    assert "adapter" in str(sink.error)
    number, _ = await scene.submit()
    assert number in scene.where()[0]


@scene_of({"version": ""}, {"version": "b", "identity": "another"})
async def test_versions_stand_side_by_side(scene):
    """Each request stays with its version, though it is another model."""
    for version, place in (("", 0), ("b", 1)) * 2:
        number, _ = await scene.submit(version=version)
        assert number in scene.where()[place]


@scene_of({"version": ""}, {"version": "b", "identity": "another"})
async def test_a_request_waits_for_its_own_version(scene):
    number, sink = await scene.submit(version="")
    scene.engines[0].step()
    await until(lambda: len(sink.tokens) > 0)
    scene.engines[0].die()
    await until(lambda: scene.links[0].state is LinkState.DEAD)
    assert scene.where()[1] == []
    assert sink.error is None
    await scene.bring_up(0, version="")
    await until(lambda: number in scene.where()[0])
    await scene.finish(sink)
    assert sink.tokens == ANSWER


@scene_of({"version": ""}, {"version": "b", "identity": "another"})
async def test_a_version_that_is_gone(scene):
    _, running = await scene.submit(version="")
    scene.set.remove(scene.links[0])
    assert isinstance(running.error, EngineDeadError)
    assert "version" in str(running.error)
    _, late = await scene.submit(version="")
    assert isinstance(late.error, EngineDeadError)
    _, served = await scene.submit(version="b")
    assert served.error is None


@scene_of({"version": ""}, {"version": ""})
async def test_engines_of_one_version_are_one_model(scene):
    link = scene.links[0]
    scene.engines[0].die()
    await until(lambda: link.state is LinkState.DEAD)
    await link.attach(scene.engines[0].connect())
    scene.engines[0].send(scene.engines[0].ready(identity="another"))
    await until(lambda: link.state is LinkState.DEAD and "has changed" in link.engine.reason)


@scene_of({"version": "", "max_num_seqs": 4}, {"version": "b", "max_num_seqs": 6, "identity": "another"})
async def test_sizes_are_those_of_the_version_that_new_requests_get(scene):
    assert scene.set.ready.max_num_seqs == 4
    scene.set.figures.version = "b"
    scene.set.figures.resize()
    assert scene.set.ready.max_num_seqs == 6


def test_adapters_that_an_engine_tells_later():
    async def scenario(scene):
        link, engine = scene.links[0], scene.engines[0]
        answer = link.commands.change_adapters(LoadAdapter(7, "x", "/cache/x"))
        engine.send(AdaptersServed({"x": "d1"}, 7))
        assert (await answer).adapters == {"x": "d1"}
        assert scene.set.ready.adapters == {"x": "d1"}
        number, _ = await scene.submit(adapter="d1")
        assert number in scene.where()[0]
        waiting = link.commands.change_adapters(LoadAdapter(8, "y", "/cache/y"))
        engine.die()
        await until(waiting.cancelled)

    play(scenario, count=2)
