"""The engine's heartbeat: what it tells, and when it ends."""

from __future__ import annotations

import threading

import pytest

from firelane.engine.process import heartbeat
from firelane.engine.process.heartbeat import HeartbeatSender, Pulse
from firelane.errors import PeerLostError
from firelane.wire.frames import Beat


class Channel:
    def __init__(self, broken=False):
        self.broken = broken
        self.beats = []
        self.several = threading.Event()

    def send(self, frame):
        if self.broken:
            raise PeerLostError("gone")
        self.beats.append(frame)
        if len(self.beats) == 3:
            self.several.set()


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    return now


def test_the_age_grows_until_the_loop_turns(clock):
    pulse = Pulse()
    clock[0] += 7
    assert pulse.age_s == 7
    pulse.touch()
    assert pulse.age_s == 0


def test_a_loop_that_rests_has_no_age(clock):
    pulse = Pulse()
    pulse.rest()
    clock[0] += 100
    assert pulse.age_s == 0
    pulse.touch()
    clock[0] += 1
    assert pulse.age_s == 1


def test_it_beats_until_it_is_closed(monkeypatch):
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.001)
    channel, pulse = Channel(), Pulse()
    pulse.rest()
    beats = HeartbeatSender(channel, pulse, lambda: None)
    assert channel.several.wait(60)
    beats.close()
    assert channel.beats[:3] == [Beat(0.0)] * 3


def test_it_tells_when_the_gateway_has_gone():
    gone = threading.Event()
    HeartbeatSender(Channel(broken=True), Pulse(), gone.set)
    assert gone.wait(60)
