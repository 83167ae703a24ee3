"""Engine processes that are started, die, and are started again, or not."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from firelane.engine_state import EngineExit
from firelane.errors import MachineError
from firelane.node.supervisor import RestartPolicy
from firelane.wire.frames import Submit
from tests.node.engine_gateway import POLICY, Gateway, engine_config, request


@pytest.fixture
def config(tmp_path):
    return engine_config(tmp_path)


def test_no_process_for_the_first_engine_is_one_line(config, monkeypatch):
    def popen(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    async def scenario():
        monkeypatch.setattr(subprocess, "Popen", popen)
        gateway = Gateway(config)
        with pytest.raises(MachineError, match=r"^no process for the engine \(.+\): free memory"):
            await gateway.supervisor.start()
        await gateway.supervisor.stop(0.0)

    asyncio.run(scenario())


def test_stop_kills_an_engine_that_does_not_react(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            os.kill(ready.pid, signal.SIGSTOP)
            await gateway.supervisor.stop(0.0, patience_s=0.05)
            assert gateway.supervisor.pid is None

    asyncio.run(scenario())


def test_killed_engine_is_started_again(config):
    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            os.kill(first.pid, signal.SIGKILL)
            second = await gateway.connect()
            assert second.pid != first.pid
            assert "killed by SIGKILL" in str(gateway.exits[0])
            assert gateway.supervisor.restarts == 1
            gateway.send(Submit([request(1)]))
            assert (await gateway.tokens_of(1))[1] == "length"

    asyncio.run(scenario())


def test_engine_is_started_again_when_the_system_had_no_room_for_it(config, monkeypatch):
    launch, refusals = subprocess.Popen, iter([True, True, False])

    def popen(*arguments, **options):
        if next(refusals):
            raise BlockingIOError("no more processes")
        return launch(*arguments, **options)

    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            monkeypatch.setattr(subprocess, "Popen", popen)
            os.kill(first.pid, signal.SIGKILL)
            assert (await gateway.connect()).pid == gateway.supervisor.pid
            assert gateway.supervisor.restarts == 1

    asyncio.run(scenario())


def test_what_an_engine_has_started_ends_with_it(config, monkeypatch, tmp_path):
    script = tmp_path / "engine"
    script.write_text(f"#!/bin/sh\nsleep 60 & echo $! > {tmp_path}/child\nwait\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))

    async def scenario():
        async with Gateway(config) as gateway:
            while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text().strip():
                await asyncio.sleep(0.002)
            os.kill(gateway.supervisor.pid, signal.SIGKILL)
            await gateway.given_up
            child = int((tmp_path / "child").read_text())
            while is_running(child):
                await asyncio.sleep(0.002)

    asyncio.run(asyncio.wait_for(scenario(), 120))


def is_running(pid):
    """Whether a process is there and not a zombie that nobody has asked for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_it_knows_whether_its_engine_is_stopped(config):
    async def scenario():
        async with Gateway(config) as gateway:
            ready = await gateway.connect()
            assert not gateway.supervisor.is_stopped()
            os.kill(ready.pid, signal.SIGSTOP)
            while not gateway.supervisor.is_stopped():
                await asyncio.sleep(0.002)
        assert not gateway.supervisor.is_stopped()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_it_knows_how_long_its_engine_has_waited_for_a_processor(config):
    async def scenario():
        async with Gateway(config) as gateway:
            await gateway.connect()
            first = gateway.supervisor.waited_s()
            assert 0 < first <= gateway.supervisor.waited_s()
        assert gateway.supervisor.waited_s() == 0

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_crash_loop_is_bounded(config):
    async def scenario():
        async with Gateway(config) as gateway:
            while not gateway.given_up.done():
                if not gateway.sockets.empty():
                    await gateway.connect()
                    os.kill(gateway.supervisor.pid, signal.SIGABRT)
                await asyncio.wait(
                    [gateway.given_up, get := asyncio.ensure_future(gateway.sockets.get())],
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if get.done():
                    gateway.sockets.put_nowait(get.result())
                get.cancel()
            assert len(gateway.exits) == 3

    asyncio.run(scenario())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP])
def test_engines_that_others_kill_or_stop_are_replaced_without_end(config, number):
    """None of them makes the next one wait longer: doubled twenty times, the delay would be hours."""
    policy = RestartPolicy(first_delay_s=0.01, max_delay_s=3600.0, max_deaths=3)

    async def scenario():
        async with Gateway(config, policy) as gateway:
            await gateway.connect()
            held = []
            for _ in range(20):
                os.kill(gateway.supervisor.pid, number)
                if number == signal.SIGSTOP:
                    while not gateway.supervisor.is_stopped():
                        await asyncio.sleep(0.002)
                    gateway.supervisor.kill()  # as it shows no life
                held.append(await gateway.sockets.get())
            assert not gateway.given_up.done()
            for sock in held:
                sock.close()

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_the_delay_doubles_with_the_deaths_that_count():
    policy = RestartPolicy(first_delay_s=0.2, max_delay_s=10.0)
    assert [policy.delay_s(deaths) for deaths in (0, 1, 2, 3, 7, 5000)] == [0.2, 0.2, 0.4, 0.8, 10.0, 10.0]


@pytest.mark.parametrize(
    ("code", "is_own"),
    [(0, True), (1, True), (75, False), (-9, False), (-15, False), (-11, True), (-6, True)],
)
def test_the_end_of_an_engine_tells_whose_doing_it_was(code, is_own):
    assert EngineExit(pid=1, return_code=code, lived_s=1.0).is_own_doing == is_own


def test_engines_that_have_served_are_replaced_at_once_and_without_end(config):
    async def scenario():
        async with Gateway(config) as gateway:
            for _ in range(5):
                await gateway.connect()
                gateway.health = gateway.health._replace(has_answered=True)
                gateway.supervisor.kill()
            await gateway.connect()
            assert gateway.supervisor.restarts == 5
            assert not gateway.given_up.done()

    asyncio.run(scenario())


def test_an_engine_that_was_ready_for_a_while_is_sound(config):
    """Though nobody asked it for anything."""

    async def scenario():
        async with Gateway(config, replace(POLICY, stable_after_s=0.0)) as gateway:
            for _ in range(5):
                await gateway.connect()
                gateway.supervisor.kill()
            await gateway.connect()
            assert not gateway.given_up.done()

    asyncio.run(scenario())


def test_a_load_is_no_life_however_long_it_takes(config):
    """Each engine but the first one ends before it is ready."""

    async def kill_each(gateway):
        while True:
            sock = await gateway.sockets.get()
            gateway.supervisor.kill()
            sock.close()

    async def scenario():
        async with Gateway(config, replace(POLICY, stable_after_s=0.0)) as gateway:
            await gateway.connect()
            gateway.supervisor.kill()
            killer = asyncio.ensure_future(kill_each(gateway))
            await gateway.given_up
            killer.cancel()
            assert len(gateway.exits) == POLICY.max_deaths

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_it_can_be_started_again_after_a_stop(config):
    async def scenario():
        async with Gateway(config) as gateway:
            first = await gateway.connect()
            await gateway.supervisor.restart(0.0)
            second = await gateway.connect()
            assert first.pid != second.pid
            assert gateway.exits == []

    asyncio.run(scenario())
