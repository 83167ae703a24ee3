"""Processes of agents, from their start to their end: with NIXL and without."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest

from firelane.child_process import nursery
from firelane.errors import PeerLostError
from firelane.link import packets
from firelane.nixl import messages
from firelane.nixl.messages import Done, Open, Ping, Register, Registered, TransferFailed
from firelane.nixl.processes import HelperAgents


@pytest.fixture(params=[False, True], ids=["all rights", "confined"])
def agents(request):
    made = HelperAgents(confined=request.param)
    yield made
    made.close()


def children(agents):
    """Agents of all helpers."""
    found = []
    for helper in helpers(agents):
        found += Path(f"/proc/{helper}/task/{helper}/children").read_text().split()
    return found


def helpers(agents):
    return [pid_of(helper.child._fd) for helper in agents._nursery._helpers]


def pid_of(process_fd):
    lines = Path(f"/proc/self/fdinfo/{process_fd}").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("Pid:")))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_helper_that_is_lost_is_replaced_by_the_other_one(agents, number, monkeypatch):
    monkeypatch.setattr(nursery, "ANSWER_S", 0.5)
    for _ in range(3):
        os.kill(helpers(agents)[0], number)
        with agents.start() as sock:
            assert answers(sock)
        assert len(helpers(agents)) == 2


def answers(sock):
    sock.settimeout(60)
    packets.send(sock, Ping())
    return messages.receive(sock)[0] == Done()


def ended(sock):
    sock.settimeout(60)
    try:
        messages.receive(sock)
    except PeerLostError:
        return True
    return False


def test_there_is_one_agent_at_a_time(agents):
    with agents.start() as first:
        assert answers(first)
        with agents.start() as second:
            assert ended(first)
            assert answers(second)
            assert len(children(agents)) == 1


def test_a_killed_agent_is_gone_and_another_one_can_start(agents):
    agents.kill()  # nobody, yet
    with agents.start() as sock:
        assert answers(sock)
        agents.kill()
        assert ended(sock)
        assert not children(agents)
    with agents.start() as sock:
        assert answers(sock)


def test_all_end_with_the_engine(agents):
    with agents.start() as sock:
        assert answers(sock)
        (pid,) = children(agents)
        agents.close()
        agents.close()
        assert ended(sock)
        assert not Path(f"/proc/{pid}").exists()
    with pytest.raises(OSError):
        agents.start()


def test_an_agent_ends_with_its_socket(agents):
    with agents.start() as sock:
        assert answers(sock)
        (pid,) = children(agents)
    while Path(f"/proc/{pid}/cmdline").read_bytes():
        pass  # nobody has waited for it before the next start, or the end


@pytest.mark.parametrize("what", [b"\xc1", b""], ids=["no message", "nothing"])
def test_an_agent_that_is_told_nonsense_ends(agents, what):
    with agents.start() as sock:
        assert answers(sock)
        if what:
            sock.send(what)
        else:
            sock.shutdown(socket.SHUT_WR)
        assert ended(sock)


def test_an_agent_says_what_it_shows_or_why_it_does_not(agents):
    """The latter where NIXL is not installed."""
    with agents.start() as sock:
        sock.settimeout(60)
        packets.send(sock, Register([]))
        answer = messages.receive(sock)[0]
        assert isinstance(answer, Registered | TransferFailed)
        if isinstance(answer, TransferFailed):
            assert "is not installed" in answer.reason


def test_a_session_before_there_is_an_agent_of_nixl_ends_it(agents):
    ours, theirs = packets.pair()
    with agents.start() as sock, ours, theirs:
        packets.send(sock, Open(4096), (theirs.fileno(), theirs.fileno()))
        assert ended(sock)
