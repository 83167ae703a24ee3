"""The watch over an engine: what it takes for a hang, and what not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from firelane.child_process import silence as watch
from firelane.engine_state import LinkState
from firelane.gateway.engines.link.watch import Deadlines, Heartbeat
from firelane.wire.frames import Beat

DEADLINES = Deadlines(silence_s=5.0, start_s=60.0, step_s=30.0, load_s=100.0)


class Loop:
    """Timers that are run by hand."""

    def __init__(self):
        self.callback = None

    def call_later(self, delay_s, callback):
        assert delay_s == watch.TICK_S
        self.callback = callback
        return self

    def cancel(self):
        self.callback = None

    def tick(self):
        callback, self.callback = self.callback, None
        if callback is not None:
            callback()


class Connection:
    frames = 0
    stopped = False
    waited = 0.0
    asked = 0

    def is_stopped(self):
        return self.stopped

    def waited_s(self):
        self.asked += 1
        return self.waited


@pytest.fixture
def watched(monkeypatch):
    loop, connection, hangs = Loop(), Connection(), []
    monkeypatch.setattr(watch.asyncio, "get_running_loop", lambda: loop)
    heartbeat = Heartbeat(DEADLINES)
    heartbeat.begin(connection, hangs.append, lambda: connection)
    return loop, connection, hangs, heartbeat


def ticks(loop, seconds):
    for _ in range(round(seconds / watch.TICK_S)):
        loop.tick()


def test_an_engine_that_falls_silent_is_noticed_in_time(watched):
    loop, connection, hangs, heartbeat = watched
    heartbeat.serves()
    connection.frames = 3
    loop.tick()
    ticks(loop, 4.5)
    assert hangs == []
    ticks(loop, 0.5)
    assert hangs == ["the engine has shown no life for 5 s"]
    assert loop.callback is None


def test_any_frame_is_a_sign_of_life(watched):
    loop, connection, hangs, _ = watched
    for _ in range(30):
        connection.frames += 1
        ticks(loop, 4.5)
    assert hangs == []


@pytest.mark.parametrize("frames", [0, 3])
def test_an_engine_that_loads_gets_longer(watched, frames):
    """Its first library from a cold drive may keep all its threads from running."""
    loop, connection, hangs, _ = watched
    connection.frames = frames
    ticks(loop, 59.5 + 0.5 * bool(frames))
    assert hangs == []
    ticks(loop, 0.5)
    assert hangs == ["the engine has shown no life for 60 s"]


@pytest.mark.parametrize("loads", [True, False])
def test_an_engine_that_is_stopped_is_noticed_after_a_second(watched, loads):
    """Nothing but its own silence could prove that one is stuck; this one cannot say anything."""
    loop, connection, hangs, heartbeat = watched
    if not loads:
        heartbeat.serves()
    connection.frames = 1
    ticks(loop, 0.5)
    connection.stopped = True
    ticks(loop, 0.5)
    assert hangs == []
    ticks(loop, 0.5)
    assert hangs == ["the engine has shown no life for 1 s"]


def test_an_engine_that_was_stopped_for_a_moment_goes_on(watched):
    loop, connection, hangs, _ = watched
    connection.stopped = True
    ticks(loop, 0.5)
    connection.stopped, connection.frames = False, 1
    ticks(loop, 4.5)
    assert hangs == []


def test_an_engine_that_waits_for_a_processor_gets_longer(watched):
    """Too many processes for the machine: its threads want to run."""
    loop, connection, hangs, heartbeat = watched
    heartbeat.serves()
    connection.frames, connection.waited = 3, 100.0
    loop.tick()
    for _ in range(119):
        loop.tick()
        connection.waited += 0.3
    assert hangs == []
    loop.tick()
    assert hangs == ["the engine has shown no life for 60 s"]


def test_an_engine_that_sleeps_on_a_busy_machine_is_noticed_in_time(watched):
    loop, connection, hangs, heartbeat = watched
    heartbeat.serves()
    connection.frames, connection.waited = 3, 100.0
    loop.tick()
    for _ in range(10):
        loop.tick()
        connection.waited += 0.2
    assert hangs == ["the engine has shown no life for 5 s"]


def test_of_an_engine_that_beats_no_threads_are_looked_at(watched):
    loop, connection, _, heartbeat = watched
    heartbeat.serves()
    for _ in range(9):
        connection.frames += 1
        ticks(loop, 1.0)
    assert connection.asked == 0


def test_a_pause_of_the_gateway_is_no_silence(watched):
    """However long it was: one turn of its loop has passed."""
    loop, connection, hangs, heartbeat = watched
    heartbeat.serves()
    connection.frames = 1
    loop.tick()
    loop.tick()
    connection.frames = 2  # read right after the pause
    ticks(loop, 5.0)
    assert hangs == []


@pytest.mark.parametrize(
    ("age_s", "loading", "hangs"), [(29, False, 0), (31, False, 1), (31, True, 0), (101, True, 1)]
)
def test_a_loop_without_progress(watched, age_s, loading, hangs):
    *_, found, heartbeat = watched
    if not loading:
        heartbeat.serves()
    heartbeat.note(Beat(age_s))
    assert len(found) == hangs
    assert not hangs or ("load" in found[0]) is loading


def test_the_end_of_a_connection_ends_its_watch(watched):
    loop, _, hangs, heartbeat = watched
    heartbeat.end()
    heartbeat.note(Beat(1000))
    assert loop.callback is None
    assert hangs == []


def test_another_engine_begins_anew(watched):
    loop, connection, hangs, heartbeat = watched
    heartbeat.serves()
    connection.frames = 1
    ticks(loop, 4.5)
    other = Connection()
    heartbeat.begin(other, hangs.append, lambda: other)
    ticks(loop, 59.5)
    assert hangs == []


def test_an_engine_that_hangs_is_killed_and_its_requests_are_lost(service):
    killed = []
    process = SimpleNamespace(kill=lambda: killed.append("killed"))
    service.run(setattr, service.replica, "process", process)
    service.run(service.replica.hang, "no life")
    assert killed == ["killed"]
    assert service.link.state is LinkState.DEAD
    assert service.http.get("/health").json()["reason"] == "no life"
    service.run(service.replica.hang, "again")
    assert killed == ["killed"]
