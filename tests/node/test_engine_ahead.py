"""The process of the first engine that is there before its config, and how a config reaches an engine."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from firelane.cli import ahead as ahead_of_options
from firelane.cli import main
from firelane.engine_config import EngineConfig, HostsConfig
from firelane.engine_config.passing import receive_config, send_config
from firelane.errors import FrameError, PeerLostError
from firelane.link.framing import encode
from firelane.node.engine_process import EngineAhead, start_engine
from firelane.wire.frames import Submit
from tests.node.engine_gateway import Gateway, engine_config, request


@pytest.fixture
def config(tmp_path: Path) -> EngineConfig:
    return engine_config(tmp_path)


@pytest.fixture
def ahead():
    made = EngineAhead()
    yield made
    made.close()


def pid_of(ahead: EngineAhead) -> int:
    assert ahead._started is not None
    return ahead._started[0].pid


def environ_of(pid: int) -> bytes:
    """Read the environment of a process that may have just begun: it has none while its program is loaded."""
    while not (environ := Path(f"/proc/{pid}/environ").read_bytes()):
        time.sleep(0.002)
    return environ


def test_the_first_engine_is_the_process_that_is_there_and_a_later_one_another(config, ahead):
    pid = pid_of(ahead)
    ahead.configure(config)

    async def scenario():
        async with Gateway(config, start=ahead.start) as gateway:
            first = await gateway.connect()
            assert first.pid == gateway.supervisor.pid == pid
            assert os.getpgid(pid) == pid
            gateway.send(Submit([request(1)]))
            assert (await gateway.tokens_of(1))[1] == "length"
            os.kill(pid, signal.SIGKILL)
            assert (await gateway.connect()).pid != pid

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_the_list_of_processes_tells_engines_apart(config):
    child, ours = start_engine(msgspec.structs.replace(config, role="decode"), {})
    while (words := Path(f"/proc/{child.pid}/cmdline").read_bytes().split(b"\0"))[1:2] != [b"-m"]:
        time.sleep(0.002)
    ours.close()
    child.end()
    assert words[4:6] == [b"role=decode", b"model=" + config.model_dir.name.encode()]


def test_a_process_that_was_not_configured_ends_when_an_engine_is_started(config, ahead):
    waiting, _ = ahead._started
    child, ours = ahead.start(config, {})
    ours.close()
    child.end()
    assert child.pid != waiting.pid
    assert waiting.code is not None


@pytest.mark.parametrize("is_other", [True, False])
def test_where_another_engine_is_started_the_configured_one_ends(config, ahead, is_other):
    ahead.configure(config)
    waiting, _ = ahead._started
    acceptor, passed = socket.socketpair()
    with acceptor, passed:
        wanted = msgspec.structs.replace(config, max_num_seqs=4) if is_other else config
        child, ours = ahead.start(wanted, {} if is_other else {"acceptor": passed})
        ours.close()
        assert child.pid != waiting.pid
        assert waiting.code is not None
        child.end()


def test_a_process_that_died_before_its_config_is_an_engine_that_died(config, ahead):
    os.kill(pid_of(ahead), signal.SIGKILL)
    assert ahead._started is not None
    assert ahead._started[0].ends_within(60)
    ahead.configure(config)

    async def scenario():
        async with Gateway(config, start=ahead.start) as gateway:
            ended = await gateway.given_up
            assert "killed by SIGKILL" in str(ended)

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_an_engine_that_needs_another_environment_is_another_process(config, ahead, monkeypatch):
    monkeypatch.setenv("FIRELANE_CLUSTER_KEY", "of the hosts")
    pid = pid_of(ahead)
    child, _ = ahead._started
    hosts = msgspec.structs.replace(config, hosts=HostsConfig(count=2, own=0, address="127.0.0.1", port=1))
    ahead.configure(hosts)
    assert child.code == -signal.SIGKILL
    other, ours = ahead.start(hosts, {})
    with ours:
        assert other.pid != pid
        assert b"FIRELANE_CLUSTER_KEY=of the hosts" in environ_of(other.pid).split(b"\0")
        other.end()


def test_it_knows_no_secret(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    monkeypatch.setenv("FIRELANE_CLUSTER_KEY", "hidden")
    ahead = EngineAhead()
    environ = environ_of(pid_of(ahead))
    ahead.close()
    assert b"PATH=" in environ
    assert b"hidden" not in environ


def test_no_engine_came_of_it(ahead):
    child, ours = ahead._started
    ahead.close()
    ahead.close()
    assert child.code is not None
    assert ours.fileno() == -1


def test_it_ends_by_itself_without_a_word_when_nobody_will_send_a_config():
    child, ours = start_bare()
    ours.close()
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err) == (1, b"", b"")


def start_bare() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        words = [sys.executable, "-m", "firelane.engine", str(theirs.fileno())]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(words, pass_fds=[theirs.fileno()], **pipes), ours


def test_where_the_system_makes_no_process_the_start_of_the_engine_tells_it(config, monkeypatch):
    def popen(*_, **__):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", popen)
        ahead = EngineAhead()
        with pytest.raises(BlockingIOError):
            ahead.start(config, {})
    child, ours = ahead.start(config, {})
    ours.close()
    assert child.end() is not None


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["serve", "--no-such-option"], True),
        (["serve", "/nowhere"], True),
        (["serve", "--help"], False),
        (["serve", "--port", "8000", "-h"], False),
        (["version"], False),
        ([], False),
    ],
)
def test_commands_leave_no_process_behind(words, begins, monkeypatch, capsys):
    made: list[tuple[int, EngineAhead]] = []
    init = EngineAhead.__init__

    def noted(self: EngineAhead) -> None:
        init(self)
        made.append((pid_of(self), self))

    monkeypatch.setattr(EngineAhead, "__init__", noted)
    monkeypatch.setattr(ahead_of_options, "set_up_inherited", lambda: None)
    monkeypatch.setattr("firelane.telemetry.logs.set_up", lambda *_: None)
    with contextlib.suppress(SystemExit):
        main(words)
    capsys.readouterr()
    assert len(made) == begins
    for pid, ahead in made:
        assert ahead._started is None
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


# ---- the config on its way


def test_a_config_comes_with_its_sockets_by_name(config):
    ours, theirs = socket.socketpair()
    acceptor, passed = socket.socketpair()
    with ours, theirs, acceptor:
        with passed:
            send_config(ours, config, {"peers": passed})
        ours.sendall(b"what follows")
        found, sockets = receive_config(theirs)
        assert found == config
        assert list(sockets) == ["peers"]
        with sockets["peers"] as peers:
            acceptor.sendall(b"x")
            assert peers.recv(1) == b"x"
        assert theirs.recv(100) == b"what follows"


def test_a_config_without_sockets_has_none(config):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_config(ours, config, {})
        assert receive_config(theirs) == (config, {})


@pytest.mark.parametrize(
    ("sent", "error"),
    [
        (b"", PeerLostError),
        (b"\1\0", PeerLostError),
        (b"\xff\xff\xff\xff", FrameError),
        (encode(request(1)), FrameError),
    ],
)
def test_what_is_no_config(sent, error):
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(sent)
        ours.close()
        with pytest.raises(error):
            receive_config(theirs)


def test_no_config_for_a_process_that_has_gone(config):
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours, pytest.raises(PeerLostError):
        send_config(ours, config, {})


def test_an_engine_that_is_started_at_once_serves(config):
    async def scenario():
        async with Gateway(config, start=start_engine) as gateway:
            assert (await gateway.connect()).pid == gateway.supervisor.pid

    asyncio.run(asyncio.wait_for(scenario(), 120))
