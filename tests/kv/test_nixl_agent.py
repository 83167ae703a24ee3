"""Engines and their agents, over a library in place of NIXL: what either says and does not say, and that
pages travel without agents, too."""

from __future__ import annotations

import os
import time

import pytest

from firelane.errors import MachineError, PeerLostError
from firelane.kv.transfer import nixl
from firelane.kv.transfer.messages import NixlMemory
from firelane.kv.transfer.page_copy import PageCopier
from firelane.link import packets
from firelane.nixl import agent, messages
from firelane.nixl.messages import Attach, Busy, Done, Open, ReadItems, TransferFailed
from tests.kv.thread_agents import CopyingLibrary, ThreadAgents
from tests.kv.transfer_engines import BLOCK, Engine, assert_same, attach, prompt

TCP = "tcp", PageCopier()
LATER_S = 60.0


@pytest.fixture
def engines():
    """The ones that a test makes, by their agents."""
    made = []

    def make(agents=None, **facts):
        engine = Engine(maps=False, copier=PageCopier(), agents=agents, **facts)
        made.append(engine)
        engine.transfer.prepare()
        return engine

    yield make
    for engine in reversed(made):
        engine.close()


def pulled(there, here, transport):
    """Pages of a prompt come in this way."""
    peer = attach(TCP, there, here)
    assert here.transfer.transport(peer) == transport
    expected = there.fill(prompt(8 * BLOCK, first=1000))
    wanted = here.wanted(prompt(8 * BLOCK + 1, first=1000))
    assert here.pull(peer, wanted).outcome == "ok"
    assert_same(here.content(wanted), expected)


@pytest.mark.parametrize("sides", [(True, True), (True, False), (False, True)])
def test_pages_travel_by_nixl_where_both_ends_have_it(engines, sides):
    there, here = (engines(ThreadAgents() if has else None) for has in sides)
    pulled(there, here, "nixl" if all(sides) else "tcp")


def test_agents_that_do_not_start_are_told_of_and_pages_travel_over_tcp(engines, caplog):
    agents = ThreadAgents(fails=1)
    there, here = engines(agents), engines(ThreadAgents())
    assert caplog.text.count("nixl_agent_failed error='no agent can be started here'") == 1
    pulled(there, here, "tcp")
    assert agents.starts == 1  # not again so soon


def test_a_library_that_is_not_there_is_told_of(engines, caplog):
    def missing(_):
        raise MachineError("NIXL is not installed")

    there, here = engines(ThreadAgents(library=missing)), engines(ThreadAgents())
    assert "nixl_agent_failed error='NIXL is not installed'" in caplog.text
    pulled(there, here, "tcp")


def test_private_pages_travel_over_tcp(engines):
    there, here = engines(ThreadAgents()), engines(ThreadAgents())
    there.transfer._side.nixl.agent().close()
    there.pool.pages.close()  # its tags are nowhere that others could map
    pulled(there, here, "tcp")


def test_a_lost_agent_is_started_again_not_too_often(engines, monkeypatch, caplog):
    agents = ThreadAgents()
    there, here = engines(ThreadAgents()), engines(agents)
    agents.kill()
    attach(TCP, there, here)
    assert agents.starts == 1
    monkeypatch.setattr(nixl, "RESTART_S", 0.0)
    monkeypatch.setattr(nixl, "WAIT_S", LATER_S)
    pulled(there, here, "nixl")
    assert agents.starts == 2
    assert caplog.text.count("nixl_agent_lost") == 1


def test_metadata_that_is_none_is_refused_and_pages_travel_over_tcp(engines, caplog):
    there, here = engines(ThreadAgents()), engines(ThreadAgents())
    there.transfer._side.nixl.agent().memory = NixlMemory(b"of nobody", [1, 1])
    pulled(there, here, "tcp")
    assert "nixl_refused" in caplog.text


@pytest.mark.parametrize("addresses", [[0x1000], [0x1000, 0], [-1, 0x1000], [0x1000, 1 << 63], [1, 2, 3, 4]])
def test_other_memories_than_those_of_the_layout_are_refused(engines, addresses):
    there, here = engines(ThreadAgents()), engines(ThreadAgents())
    there.transfer._side.nixl.agent().memory = NixlMemory(b"", addresses)
    with pytest.raises(PeerLostError, match="not that of its pages"):
        attach(TCP, there, here)


class Failing(CopyingLibrary):
    """No transfer succeeds."""

    def is_done(self, transfer):
        del transfer
        raise MachineError("the transfer failed")


def test_a_read_that_fails_loses_the_pull(engines):
    there, here = engines(ThreadAgents()), engines(ThreadAgents(library=Failing))
    peer = attach(TCP, there, here)
    there.fill(prompt(16))
    assert here.pull(peer, here.wanted(prompt(17))).outcome == "lost"
    assert here.lost == [(peer, "the transfer failed")]
    pulled(there, here, "tcp")  # it would fail again


class Endless(CopyingLibrary):
    """No transfer ends before it is told so."""

    def __init__(self, name):
        super().__init__(name)
        self.ends = False

    def is_done(self, transfer):
        del transfer
        return self.ends


def test_a_read_that_does_not_end_is_late_and_its_memory_stays_until_it_does(engines):
    libraries = []

    def kept(name):
        libraries.append(Endless(name))
        return libraries[-1]

    there, here = engines(ThreadAgents()), engines(ThreadAgents(library=kept))
    peer = attach(TCP, there, here)
    there.fill(prompt(16))
    assert here.pull(peer, here.wanted(prompt(17)), deadline_s=0.05).outcome == "late"
    here.transfer._side.nixl.agent()  # it has seen the end of the sessions, and answers
    assert sum(len(one.registered) for one in libraries) >= 2  # the pool's own memories are one
    for one in libraries:
        one.ends = True
    until(lambda: sum(len(one.registered) for one in libraries) == 1)
    pulled(there, here, "nixl")  # the same peer again


def until(condition):
    ends_at_s = time.monotonic() + LATER_S
    while not condition():
        assert time.monotonic() < ends_at_s
        time.sleep(0.001)


def test_an_agent_with_too_many_endless_reads_starts_again(engines, monkeypatch):
    monkeypatch.setattr(agent, "MOST_CLOSED", 1)
    monkeypatch.setattr(nixl, "RESTART_S", 0.0)
    monkeypatch.setattr(nixl, "WAIT_S", LATER_S)
    agents = ThreadAgents(library=Endless)
    there, here = engines(ThreadAgents()), engines(agents)
    there.fill(prompt(16))
    for _ in range(2):
        peer = attach(TCP, there, here)
        assert here.pull(peer, here.wanted(prompt(17)), deadline_s=0.5).outcome == "late"
    until(lambda: not here.transfer._side.nixl._agent.answers())
    agents.library = CopyingLibrary
    pulled(there, here, "nixl")
    assert agents.starts == 2


def test_a_reader_that_waits_for_its_agent_can_be_closed(engines):
    there, here = engines(ThreadAgents()), engines(ThreadAgents(library=Endless))
    peer = attach(TCP, there, here)
    there.fill(prompt(16))
    wanted = here.wanted(prompt(17))
    mine = here.kv.incoming.begin(wanted, len(wanted))
    here.transfer.pull(peer, wanted, mine, time.monotonic() + 1e6)
    here.transfer.detach(peer)
    settled = here.settled()
    here.kv.incoming.settle(mine, settled.arrived)
    assert settled.outcome == "lost"


@pytest.fixture
def session():
    """An engine's end of one, and the agent's."""
    ours, theirs = packets.pair()
    fd, staging = nixl._staging(4096)
    os.close(fd)
    with theirs:
        made = nixl.NixlSession(ours, staging, 4096 - 256)
        yield made, theirs
        made.close()


def test_an_answer_may_be_none(session):
    made, theirs = session
    theirs.send(b"\xc1")
    with pytest.raises(PeerLostError, match="the NIXL agent of this engine"):
        made.wait(time.monotonic() + LATER_S)


def test_an_answer_may_be_to_something_else(session):
    made, theirs = session
    packets.send(theirs, Busy())
    with pytest.raises(PeerLostError, match="errs"):
        made.wait(time.monotonic() + LATER_S)


def test_an_answer_may_be_a_failure(session):
    made, theirs = session
    packets.send(theirs, TransferFailed("it cannot"))
    with pytest.raises(PeerLostError, match="it cannot"):
        made.wait(time.monotonic() + LATER_S)


def test_an_answer_may_not_come(session):
    made, _ = session
    with pytest.raises(TimeoutError):
        made.wait(time.monotonic() + 0.01)
    with pytest.raises(TimeoutError):
        made.attach(NixlMemory(b"", []), time.monotonic() + 0.01)


def test_an_agent_may_be_gone(session):
    made, theirs = session
    theirs.close()
    for gone in (lambda: made.ask([(0, 8, [0], 0)]), lambda: made.wait(time.monotonic() + LATER_S)):
        with pytest.raises(PeerLostError, match="has ended"):
            gone()


def test_messages_are_what_they_were():
    ours, theirs = packets.pair()
    with ours, theirs:
        sent = [Attach(b"m", [1, 1 << 63]), ReadItems([(0, 1, [2, 3], 4), (1, 8, [], 5)]), Open(5), Done()]
        for message in sent:
            packets.send(ours, message)
        assert [messages.receive(theirs)[0] for _ in sent] == sent
        ours.close()
        with pytest.raises(PeerLostError, match="closed"):
            messages.receive(theirs)
