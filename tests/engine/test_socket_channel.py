"""The engine process waits for frames on its socket, and ends when it is told to."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from typing import Any

import pytest

from firelane.engine.process.heartbeat import Pulse
from firelane.engine.process.process import SocketChannel
from firelane.link.channel import Channel
from firelane.link.framing import encode
from firelane.wire.frames import Abort, Drain, NewRequest, Rejected, Sampling, Submit, ToEngine


@pytest.fixture
def ends():
    gateway, engine = socket.socketpair()
    with gateway, engine:
        yield gateway, SocketChannel(Channel[ToEngine](engine, ToEngine), Pulse())


def test_frames_come_in_order(ends) -> None:
    gateway, channel = ends
    sent = [Submit([NewRequest(id=4, prompt=b"", sampling=Sampling())]), Abort([4, 5])]
    gateway.sendall(b"".join(map(encode, sent)))
    assert channel.receive(None) == sent


def test_a_short_wait_ends_without_frames(ends) -> None:
    _, channel = ends
    assert channel.receive(0.001) == []
    assert channel.receive(0.0) == []


def test_a_draining_engine_does_not_wait_and_takes_nothing_more(ends) -> None:
    gateway, channel = ends
    requests = [NewRequest(id=n, prompt=b"", sampling=Sampling()) for n in (4, 5)]
    gateway.sendall(encode(Drain(0.0)) + encode(Submit(requests)) + encode(Abort([3])))
    sent: list[Any] = []
    channel.send = sent.append
    assert not channel.is_overdue
    assert channel.receive(None) == [Abort([3])]
    assert channel.receive(None) == []
    assert channel.is_draining
    assert channel.is_overdue
    assert [(type(frame), frame.id, frame.elsewhere) for frame in sent] == [
        (Rejected, 4, True),
        (Rejected, 5, True),
    ]


def test_an_engine_that_has_time_to_drain_is_not_overdue(ends) -> None:
    gateway, channel = ends
    gateway.sendall(encode(Drain(3600.0)))
    channel.receive(0.0)
    assert channel.is_draining
    assert not channel.is_overdue


def test_terminated_while_nothing_runs_it_ends_at_once(ends) -> None:
    _, channel = ends
    with pytest.raises(SystemExit):
        channel.terminate()


@pytest.mark.parametrize("wait_s", [0.0, 0.001])
def test_terminated_while_work_is_in_hand_it_drains(ends, wait_s) -> None:
    """A request that waits for its grammar is work in hand, too: the channel is asked for a short wait."""
    _, channel = ends
    channel.receive(wait_s)
    channel.terminate()
    channel.receive(wait_s)
    assert channel.is_draining


def test_without_a_gateway_a_load_ends_at_once_and_a_step_by_its_socket(ends, monkeypatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    _, channel = ends
    channel.gateway_gone()
    assert ended == [0]
    channel.is_loading = False
    channel.gateway_gone()
    assert ended == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="no parent-death signal")
def test_an_engine_ends_with_the_process_that_started_it() -> None:
    """Whatever it is at: it does not look at its socket while it loads."""
    engine = (
        "import firelane.engine.__main__ as engine, socket, time\n"
        "kept, given = socket.socketpair(); channel = engine.as_child(str(given.detach()))\n"
        "print(1, flush=True); time.sleep(20); print(2)"
    )
    gateway = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {engine!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", gateway], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b""  # at the end of the last process that has it
