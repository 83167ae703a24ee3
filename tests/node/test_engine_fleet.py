"""Replicas and their rolling restart, with engines that are no processes."""

from __future__ import annotations

import asyncio
import os
from typing import ClassVar

import msgspec
import pytest

from firelane.engine_config import EngineConfig
from firelane.engine_state import EngineExit, EngineLifecycle, GaveUp, Lost
from firelane.errors import MachineError
from firelane.native import machine
from firelane.node import fleet
from firelane.node.fleet import Fleet
from firelane.node.supervisor import EngineHealth
from firelane.server.engine_shares import EngineOptions, share_out, share_threads
from firelane.wire.frames import Failed
from tests.ready_frame import READY

ABOVE = "; its last lines are above"


class Supervisor:
    """Hands over a socket when it is started; its link decides when it is ready."""

    made: ClassVar[list[Supervisor]] = []
    refuse = False

    def __init__(self, config, on_socket, *, on_exit, on_given_up, before_restart, on_acceptor, **places):
        self.config, self.on_socket, self.on_exit, self.on_given_up = config, on_socket, on_exit, on_given_up
        self.before_restart, self.on_acceptor = before_restart, on_acceptor
        self.join_peers, self.group, self.health = (
            places["join_peers"],
            places["place"].group,
            places["health"],
        )
        self.calls = []
        Supervisor.made.append(self)

    async def start(self):
        if Supervisor.refuse:
            raise MachineError("no process")
        self.calls.append("start")
        await self.on_socket(object())

    async def stop(self, timeout_s):
        self.calls.append(("stop", timeout_s))

    def kill(self):
        self.calls.append("kill")

    def is_stopped(self):
        return False

    def waited_s(self):
        return 0.0


class Link:
    def __init__(self, log, name):
        self.log, self.name = log, name
        self.lifecycle, self.process = EngineLifecycle(lambda _: None, lambda _: None), None
        self.in_flight = 0

    async def attach(self, _):
        self.log.append(f"attach {self.name}")

    def serve(self):
        self.lifecycle.serve(READY)
        self.lifecycle.ready_s = 1.0


class Engines:
    """Notes what the fleet does; moved requests are heard of one turn later."""

    def __init__(self, log):
        self.log, self.links = log, []
        self.unheard, self.serves = 0, True

    def add(self, name):
        self.links.append(Link(self.log, name))
        return self.links[-1]

    def share(self, link, acceptor):
        self.log.append(f"share {self.links.index(link)} {acceptor}")

    def remove(self, link):
        self.log.append(f"remove {self.links.index(link)}")

    def retire(self, link, _):
        self.log.append(f"retire {self.links.index(link)}")

    def is_held(self, _):
        return False

    def move(self, link, count):
        moved = min(count, link.in_flight)
        link.in_flight -= moved
        self.unheard = moved
        asyncio.get_running_loop().call_soon(setattr, self, "unheard", 0)
        self.log.append(f"move {moved}")
        return moved


@pytest.fixture
def scene(monkeypatch, tmp_path):
    """A function that plays a scenario with a fleet of two that serves."""
    Supervisor.made, Supervisor.refuse = [], False
    monkeypatch.setattr(fleet, "EngineSupervisor", Supervisor)
    monkeypatch.setattr(fleet, "FINISH_S", 0.0)
    monkeypatch.setattr(fleet, "POLL_S", 0.0)
    monkeypatch.setattr(fleet, "LAST_FRAMES_S", 0.0)
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)

    def play(scenario):
        async def run():
            log = []
            engines, own = (
                Engines(log),
                Fleet([config, config], lambda name, event: log.append(f"{type(event).__name__} {name}")),
            )
            await own.start()
            await own.connect(engines)
            for link in engines.links:
                link.serve()
            log.clear()
            await asyncio.wait_for(scenario(own, engines, log), 120)

        asyncio.run(run())

    return play


def serve_next(engines):
    """The link that is added next becomes ready."""
    add = engines.add

    def wrapped(name):
        link = add(name)
        asyncio.get_running_loop().call_later(0.001, link.serve)
        return link

    engines.add = wrapped


def test_the_first_sockets_wait_for_their_links(scene):
    async def scenario(own, _engines, _log):
        assert [replica.name for replica in own.replicas] == ["0", "1"]
        assert [s.calls for s in Supervisor.made] == [["start"]] * 2
        assert [s.health() for s in Supervisor.made] == [EngineHealth(1.0)] * 2

    scene(scenario)


def test_each_engine_is_replaced_by_one_that_is_ready(scene):
    async def scenario(own, engines, log):
        serve_next(engines)
        engines.links[0].in_flight = 3
        await own.restart()
        assert log == [
            *("attach 0", "retire 0", "move 2", "move 1", "remove 0"),
            *("attach 1", "retire 1", "remove 1"),
        ]
        assert [s.calls[-1] for s in Supervisor.made[:2]] == [("stop", fleet.STOP_S)] * 2
        assert [r.link for r in own.replicas] == engines.links[2:]

    scene(scenario)


def test_where_the_new_engine_does_not_come_up_the_old_ones_stay(scene):
    async def scenario(own, _engines, log):
        old = list(own.replicas)
        restart = asyncio.ensure_future(own.restart())
        while len(Supervisor.made) < 3 or not Supervisor.made[2].calls:
            await asyncio.sleep(0)
        Supervisor.made[2].on_given_up(EngineExit(pid=1, return_code=1, lived_s=0.1))
        await restart
        assert own.replicas == old
        assert Supervisor.made[2].calls == ["start", ("stop", 0.0)]
        assert sorted(log) == ["GaveUp 0", "attach 0", "remove 2"]

    scene(scenario)


def test_where_there_is_no_process_the_old_ones_stay(scene):
    async def scenario(own, _engines, log):
        old = list(own.replicas)
        Supervisor.refuse = True
        await own.restart()
        assert own.replicas == old
        assert log == ["remove 2"]

    scene(scenario)


def test_one_restart_at_a_time(scene):
    async def scenario(own, engines, _log):
        serve_next(engines)
        await asyncio.gather(own.restart(), own.restart())
        assert len(Supervisor.made) == 4

    scene(scenario)


def test_a_link_has_its_process_and_tells_the_health_of_its_engine(scene):
    async def scenario(_own, engines, log):
        link, supervisor = engines.links[1], Supervisor.made[1]
        assert link.process is supervisor
        link.lifecycle.has_served = True
        assert supervisor.health() == EngineHealth(1.0, has_answered=True)
        supervisor.on_exit(EngineExit(pid=1, return_code=-9, lived_s=1.0))
        assert log == ["Exited 1"]

    scene(scenario)


@pytest.mark.parametrize(
    ("code", "failed", "told"),
    [
        (
            -1,
            None,
            GaveUp(f"engine process 1 was killed by SIGHUP{ABOVE}", 1, was_killed=True),
        ),
        (3, None, GaveUp(f"engine process 1 exited with code 3{ABOVE}", 3)),
        (-9, Failed("no memory", 4), GaveUp("no memory", 4)),
    ],
)
def test_the_last_words_of_an_engine_say_why_its_place_stays_empty(scene, code, failed, told):
    async def scenario(own, engines, _log):
        events = []
        replica = own.replicas[0]
        replica._tell = lambda name, event: events.append((name, event))
        if failed is not None:
            engines.links[0].lifecycle.change(failed)
        Supervisor.made[0].on_given_up(EngineExit(pid=1, return_code=code, lived_s=0.1))
        assert (replica.has_given_up, events) == (True, [])  # its last frame may still be on the way
        await asyncio.sleep(0.01)
        assert events == [("0", told)]

    scene(scenario)


def test_an_acceptor_that_comes_before_the_link_waits_for_it(monkeypatch, tmp_path):
    Supervisor.made = []
    monkeypatch.setattr(fleet, "EngineSupervisor", Supervisor)
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)

    async def scenario():
        log = []
        own = Fleet([config], lambda *_: None, is_shared=True)
        Supervisor.made[0].on_acceptor("early")
        await own.connect(Engines(log))
        Supervisor.made[0].on_acceptor("late")
        assert log == ["share 0 early", "share 0 late"]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("shares", "roles", "joins"), [(False, False, False), (True, False, True), (False, True, True)]
)
def test_engines_that_have_pages_from_each_other_join_their_peers(
    monkeypatch, tmp_path, shares, roles, joins
):
    Supervisor.made = []
    monkeypatch.setattr(fleet, "EngineSupervisor", Supervisor)
    config = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, role="decode" if roles else "both")
    Fleet([config], lambda *_: None, shares_pages=shares)
    assert (Supervisor.made[0].join_peers is not None) is joins


@pytest.mark.parametrize(("serves", "calm_s"), [(True, 60.0), (False, 60.0), (True, 0.0)])
def test_the_next_engine_waits_until_what_was_lost_is_heard_of_again(scene, monkeypatch, serves, calm_s):
    """The next engine waits only where another engine serves, and not for ever."""
    monkeypatch.setattr(fleet, "CALM_S", calm_s)

    async def scenario(_own, engines, _log):
        engines.unheard, engines.serves = 3, serves
        waiting = asyncio.ensure_future(Supervisor.made[0].before_restart())
        for _ in range(5):
            await asyncio.sleep(0)
        waits = serves and calm_s > 0
        assert waiting.done() is not waits
        engines.unheard = 0
        await waiting

    scene(scenario)


def test_engines_that_load_are_not_waited_for_at_the_end(scene):
    async def scenario(own, engines, _log):
        engines.links[1].lifecycle.change(Lost("gone"))
        await own.stop()
        assert [s.calls[-1] for s in Supervisor.made] == [("stop", fleet.STOP_S), ("stop", 0.0)]

    scene(scenario)


@pytest.mark.parametrize(
    ("cores", "number", "parts"),
    [
        (range(4), 2, [(0, 1), (2, 3)]),
        (range(5), 2, [(0, 1), (2, 3, 4)]),
        ([1, 3, 5], 3, [(1,), (3,), (5,)]),
        (range(2), 3, [None] * 3),
    ],
)
def test_cores_are_shared_out(cores, number, parts):
    assert share_out(list(cores), number) == parts


@pytest.mark.parametrize(
    ("quota", "parts", "threads"),
    [
        (None, [(0, 1, 4, 5), (2, 3, 6, 7)], [2, 2]),  # two threads a core: 0 and 4 are one
        (3, [(0, 1, 4, 5), (2, 3, 6, 7)], [1, 2]),
        (1, [(0, 1, 4, 5), (2, 3, 6, 7)], [1, 1]),
        (None, [None] * 3, [1, 1, 2]),
        (2, [None] * 3, [1, 1, 1]),
    ],
)
def test_threads_are_shared_out(monkeypatch, quota, parts, threads):
    cpuinfo = "\n\n".join(f"processor : {i}\nphysical id : 0\ncore id : {i % 4}" for i in range(8))
    monkeypatch.setattr(machine, "_read", lambda _path: cpuinfo)
    monkeypatch.setattr(machine, "_affinity", lambda: range(8))
    monkeypatch.setattr(machine.cgroup, "cpu_quota", lambda: quota)
    assert share_threads(parts) == threads


@pytest.mark.parametrize(
    ("quota", "models", "replicas", "threads"),
    [
        (2, 2, 1, [[1], [1]]),
        (3, 2, 1, [[1], [2]]),
        (4, 2, 2, [[1, 1], [1, 1]]),
        (1, 3, 1, [[1], [1], [1]]),  # one at least
        (2, 1, 1, [[None]]),  # the engine looks at the quota itself
        (None, 2, 1, [[None], [None]]),
        (None, 2, 2, [[2, 2], [2, 2]]),
        (8, 2, 1, [[None], [None]]),  # all that the machine has: no quota to speak of
    ],
)
def test_models_share_the_threads_of_a_quota(monkeypatch, tmp_path, quota, models, replicas, threads):
    cpuinfo = "\n\n".join(f"processor : {i}\nphysical id : 0\ncore id : {i % 4}" for i in range(8))
    monkeypatch.setattr(machine, "_read", lambda _path: cpuinfo)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)))
    monkeypatch.setattr(machine.cgroup, "cpu_quota", lambda: quota)
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path)
    options = [EngineOptions(engine=engine, models=models, index=i, replicas=replicas) for i in range(models)]
    assert [[config.threads for config in one.configs()] for one in options] == threads
    asked = EngineOptions(engine=msgspec.structs.replace(engine, threads=3), models=models)
    assert [config.threads for config in asked.configs()] == [3]


def test_threads_that_were_asked_for_count_for_each_replica(tmp_path):
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, threads=3)
    assert [c.threads for c in EngineOptions(engine=engine, replicas=2).configs()] == [3, 3]


def test_replicas_share_cores_and_memory(tmp_path):
    engine = EngineConfig(model_dir=tmp_path, cache_dir=tmp_path, kv_cache_bytes=1000)
    assert EngineOptions(engine=engine).configs() == [engine]
    configs = EngineOptions(engine=engine, replicas=2).configs()
    assert [(c.replicas, c.kv_cache_bytes) for c in configs] == [(2, 500)] * 2
