"""Commands to an engine: when they are sent, and what goes before them."""

from __future__ import annotations

import asyncio

import pytest

from firelane.engine_state import EngineLifecycle, LinkState, Lost
from firelane.gateway.engines.link.commands import Commands
from firelane.gateway.engines.link.outbox import Outbox
from firelane.wire.frames import Drain, ForgetTenant, NewRequest, Sampling, Sleep, Submit, TellPages, Wake
from tests.ready_frame import READY

REQUEST = NewRequest(id=1, prompt=b"\0\0\0\0", sampling=Sampling())
ASKED = ForgetTenant("acme", 7)


class Scene:
    """Commands to an engine that serves, and the frames that went out."""

    def __init__(self):
        self.frames = []
        self.lifecycle = EngineLifecycle(lambda _: None, lambda _: None)
        self.outbox = Outbox(self.frames.append)
        self.commands = Commands(self.lifecycle, self.outbox, self.frames.append)
        self.lifecycle.serve(READY)


def play(scenario):
    async def run():
        scene = Scene()
        await asyncio.wait_for(scenario(scene), 60)
        return scene

    return asyncio.run(run())


def test_requests_go_before_the_command_that_ends_the_service():
    async def scenario(scene):
        scene.outbox.submit(REQUEST)
        scene.commands.sleep()
        assert scene.frames == [Submit([REQUEST]), Sleep()]
        await asyncio.sleep(0)

    assert play(scenario).frames == [Submit([REQUEST]), Sleep()]

    async def draining(scene):
        scene.outbox.submit(REQUEST)
        scene.commands.drain(2.5)

    scene = play(draining)
    assert scene.frames == [Submit([REQUEST]), Drain(2.5)]
    assert (scene.lifecycle.state, scene.lifecycle.engine.reason) == (
        LinkState.DEAD,
        "the engine is draining",
    )


def test_standby_is_asked_for_once_and_left_once_asked_for():
    async def scenario(scene):
        scene.commands.wake()
        assert scene.frames == []
        scene.commands.sleep()
        scene.commands.sleep()
        assert scene.lifecycle.state is LinkState.STANDBY
        scene.commands.wake()
        assert scene.frames == [Sleep(), Wake()]

    play(scenario)


def test_pages_are_followed_whatever_the_state():
    async def scenario(scene):
        scene.lifecycle.lose(Lost("closed"))
        scene.commands.follow_pages()
        assert scene.frames == [TellPages()]

    play(scenario)


def test_an_erasure_is_answered_by_its_number():
    async def scenario(scene):
        answer = scene.commands.forget_tenant(ASKED)
        assert scene.frames == [ASKED]
        scene.commands.erasures.take(8, 3)  # of another question
        assert not answer.done()
        scene.commands.erasures.take(7, 5)
        scene.commands.erasures.take(7, 6)  # once more
        assert await answer == 5

    play(scenario)


@pytest.mark.parametrize("end", [lambda own: own.lose(Lost("closed")), lambda own: own.retire("replaced")])
def test_without_an_engine_nothing_is_asked(end):
    async def scenario(scene):
        end(scene.lifecycle)
        assert scene.commands.forget_tenant(ASKED) is None
        scene.commands.sleep()
        assert scene.frames == []

    play(scenario)
