"""A gateway process that shows no life is killed, so that another one is started; others are not."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from firelane.child_process import Child, silence
from firelane.child_process.silence import SilenceLimits, SilenceWatch
from firelane.gateway.processes.gateway_child import GatewayChild

LIMITS = SilenceLimits(silence_s=0.05, start_s=600.0)


@pytest.fixture
def process() -> Iterator[Child]:
    made = Child.start(["sleep", "600"], os.environ)
    yield made
    made.end()


def watched(process: Child, monkeypatch: pytest.MonkeyPatch) -> GatewayChild:
    monkeypatch.setattr(silence, "TICK_S", 0.01)
    control: Any = None
    child = GatewayChild(1, 1, process, control, 0.0, watch=SilenceWatch(LIMITS))
    child.watch_silence()
    return child


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "stuck"])
def test_one_that_has_started_and_falls_silent_is_killed(process, monkeypatch, is_stopped: bool) -> None:
    async def run() -> GatewayChild:
        child = watched(process, monkeypatch)
        child.note_message()
        if is_stopped:
            os.kill(process.pid, signal.SIGSTOP)
        await asyncio.wait_for(process.exited(), 60)
        return child

    child = asyncio.run(run())
    assert child.child.ending().startswith("showed no life for 0.0")


def test_one_that_is_stopped_while_it_starts_is_killed(process, monkeypatch) -> None:
    async def run() -> None:
        watched(process, monkeypatch)
        os.kill(process.pid, signal.SIGSTOP)
        await asyncio.wait_for(process.exited(), 60)

    asyncio.run(run())


def test_one_that_starts_slowly_or_goes_on_talking_is_let_be(process, monkeypatch) -> None:
    async def run() -> None:
        child = watched(process, monkeypatch)
        await asyncio.sleep(0.2)
        assert not process.has_ended
        for _ in range(20):
            child.note_message()
            await asyncio.sleep(0.01)
        assert not process.has_ended
        child.watch.end()
        process.kill()
        assert child.child.ending() == "was killed by SIGKILL"

    asyncio.run(run())
