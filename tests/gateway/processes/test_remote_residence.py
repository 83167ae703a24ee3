"""A model whose engines another process owns."""

from __future__ import annotations

import asyncio

import pytest

from firelane.errors import EngineDeadError
from firelane.gateway.processes.control import Resident, Used, Want, WantReply
from firelane.gateway.processes.remote_residence import RemoteResidence


class Engines:
    takes: object | None = None


class Scene:
    def __init__(self) -> None:
        self.sent: list[Want | Used] = []
        self.now_s, self.engines = 100.0, Engines()
        self.residence = RemoteResidence("m", self.engines, self.sent.append, lambda: self.now_s)


def test_what_the_owner_said_counts() -> None:
    residence = Scene().residence
    assert (residence.is_cold, residence.state, residence.leaves) == (False, "", False)
    residence.update(
        Resident(model="m", is_cold=True, state="standby", left_s=4, leaves=True, deadline_s=9.0)
    )
    assert (residence.is_cold, residence.state, residence.left_s) == (True, "standby", 4)
    assert (residence.leaves, residence.deadline_s, residence.reason) == (True, 9.0, "")


def test_use_is_told_now_and_then_and_when_it_changes() -> None:
    scene = Scene()
    for keep_s in (None, None, 5.0, 5.0):
        scene.residence.used(keep_s)
    scene.now_s += 1
    scene.residence.used(5.0)
    assert scene.sent == [Used("m", None), Used("m", 5.0), Used("m", 5.0)]


def test_a_wanted_model_is_there_when_its_engine_is_here() -> None:
    async def work() -> None:
        scene = Scene()
        waits = [asyncio.ensure_future(scene.residence.want()) for _ in range(2)]
        await asyncio.sleep(0)
        assert scene.sent == [Want(1, "m"), Want(2, "m")]
        scene.residence.answered(WantReply(2, "m", "", None))
        scene.residence.answered(WantReply(7, "m", "", None))
        await asyncio.sleep(0)
        assert not waits[1].done()
        scene.engines.takes = object()
        await waits[1]
        scene.residence.answered(WantReply(1, "m", "it does not start", 3))
        with pytest.raises(EngineDeadError, match="does not start") as failed:
            await waits[0]
        assert failed.value.retry_after_s == 3

    asyncio.run(work())
