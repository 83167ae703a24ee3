"""How the engine process waits, and how it takes its end."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from firelane.engine.heartbeat import Pulse
from firelane.engine.process import SocketPort
from firelane.wire.codec import encode
from firelane.wire.frames import Abort, Drain, NewRequest, Rejected, Sampling, Submit, ToEngine
from firelane.wire.transport import Channel


class Core:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def submit(self, request: NewRequest) -> None:
        self.heard.append(request.id)

    def abort(self, request_id: int) -> None:
        self.heard.append(-request_id)

    def abort_all(self) -> None:
        self.heard.append("all")


@pytest.fixture
def ends():
    gateway, engine = socket.socketpair()
    with gateway, engine:
        yield gateway, SocketPort(Channel[ToEngine](engine, ToEngine), Pulse()), Core()


def test_frames_are_acted_on_in_order(ends) -> None:
    gateway, port, core = ends
    request = NewRequest(id=4, prompt=b"", sampling=Sampling())
    gateway.sendall(encode(Submit([request])) + encode(Abort([4, 5])))
    port.receive(core, wait_s=None)
    assert core.heard == [4, -4, -5]


def test_a_short_wait_ends_without_frames(ends) -> None:
    _, port, core = ends
    port.receive(core, wait_s=0.001)
    port.receive(core, wait_s=0.0)
    assert core.heard == []


def test_a_draining_engine_does_not_wait_and_takes_nothing_more(ends) -> None:
    gateway, port, core = ends
    gateway.sendall(encode(Drain(0.0)) + encode(Submit([NewRequest(id=4, prompt=b"", sampling=Sampling())])))
    sent: list[object] = []
    port.send = sent.append
    port.receive(core, wait_s=None)
    port.receive(core, wait_s=None)
    assert port.is_draining
    assert core.heard == ["all", "all"]
    assert isinstance(sent[0], Rejected)


def test_terminated_while_nothing_runs_it_ends_at_once(ends) -> None:
    _, port, _ = ends
    with pytest.raises(SystemExit):
        port.terminate()


@pytest.mark.parametrize("wait_s", [0.0, 0.001])
def test_terminated_while_work_is_in_hand_it_drains(ends, wait_s) -> None:
    """A request that waits for its grammar is work in hand, too: the port is asked for a short wait."""
    _, port, core = ends
    port.receive(core, wait_s=wait_s)
    port.terminate()
    port.receive(core, wait_s=wait_s)
    assert port.is_draining


def test_without_a_gateway_a_load_ends_at_once_and_a_step_by_its_socket(ends, monkeypatch) -> None:
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    _, port, _ = ends
    port.gateway_gone()
    assert ended == [0]
    port.is_loading = False
    port.gateway_gone()
    assert ended == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="no parent-death signal")
def test_an_engine_ends_with_the_process_that_started_it() -> None:
    """Whatever it is at: it does not look at its socket while it loads."""
    engine = (
        "import firelane.engine.__main__ as engine, time\n"
        "engine.end_with_parent(); print(1, flush=True); time.sleep(20); print(2)"
    )
    gateway = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {engine!r}]).wait()"
    with subprocess.Popen([sys.executable, "-c", gateway], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        process.kill()
        assert process.stdout.read() == b""  # at the end of the last process that has it
