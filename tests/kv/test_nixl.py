"""Pages by NIXL itself, over what UCX finds on this machine: the contract, and what may happen to agents."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from firelane.kv.transfer import nixl, nixl_copy
from firelane.kv.transfer.page_copy import PageCopier
from firelane.nixl.installed import is_installed
from firelane.nixl.processes import HelperAgents
from tests.kv import test_transfer as contract
from tests.kv.transfer_engines import BLOCK, PAGE_BYTES, Engine, assert_same, attach, prompt

pytestmark = pytest.mark.skipif(not is_installed(), reason="NIXL is not installed (the extra `rdma`)")
NIXL = "nixl-installed", PageCopier()
CONTRACT = (
    contract.test_pages_come_by_their_names,
    contract.test_a_page_that_is_given_out_while_it_is_copied_is_stale,
    contract.test_altered_bytes_are_not_used,
    contract.test_a_slow_peer_is_late_and_its_pages_stay_reserved_until_then,
    contract.test_another_life_is_another_peer,
    contract.test_the_longest_state_that_is_there_comes,
)
SOON_S = 30.0


@pytest.mark.parametrize("test", CONTRACT, ids=lambda test: test.__name__)
def test_the_contract(test):
    test(NIXL)


def test_another_layout_is_refused_by_name():
    contract.test_what_does_not_fit_is_refused_by_name(NIXL, {"layout_id": "x"}, "laid out differently: x")


class Pair:
    """A source that has a prompt's pages, a reader that is attached to it, and their agents."""

    def __init__(self):
        self.agents = HelperAgents(confined=True), HelperAgents(confined=True)
        self.there, self.here = (
            Engine(maps=False, copier=PageCopier(), agents=agents) for agents in self.agents
        )
        self.expected = self.there.fill(prompt(20 * BLOCK))
        self.wanted = self.here.wanted(prompt(20 * BLOCK + 1))
        self.attach()

    def attach(self):
        for engine in (self.there, self.here):
            engine.transfer.prepare()  # with all the time that it takes
        self.peer = attach(NIXL, self.there, self.here)
        assert self.here.transfer.transport(self.peer) == "nixl"

    def pull(self, deadline_s=SOON_S):
        return self.here.pull(self.peer, self.wanted, deadline_s)

    def assert_next_pull_gives_all(self):
        self.attach()
        assert self.pull().outcome == "ok"
        assert_same(self.here.content(self.wanted), self.expected)

    def close(self):
        self.here.close()
        self.there.close()


def pid_of(agents):
    helper = agents._helper.pid
    (pid,) = Path(f"/proc/{helper}/task/{helper}/children").read_text().split()
    return int(pid)


@pytest.fixture
def pair(monkeypatch):
    """Its agents are confined, and so have the network alone; of each half of the staging memory four pages
    are used, and agents start again at once."""
    monkeypatch.setattr(nixl_copy, "MOST_PAGES", 4)
    monkeypatch.setattr(nixl, "RESTART_S", 0.0)
    made = Pair()
    yield made
    made.close()


def test_pages_come_over_the_network(pair):
    assert pair.pull().nbytes == 20 * PAGE_BYTES
    assert_same(pair.here.content(pair.wanted), pair.expected)


@pytest.mark.parametrize("whose", ["the source's", "the reader's"])
def test_an_agent_that_is_killed_during_a_pull_loses_that_pull_alone(pair, whose):
    agents = pair.agents[whose == "the reader's"]
    copier, pid = pair.here.pool.copier, pid_of(agents)
    copy = copier.copy

    def killed_first(*arguments):
        copier.copy = copy
        agents.kill()
        return copy(*arguments)

    copier.copy = killed_first
    settled = pair.pull()
    assert settled.outcome in ("lost", "late")
    assert not all(settled.arrived)
    pair.assert_next_pull_gives_all()
    assert pid_of(agents) != pid


@pytest.mark.parametrize("whose", ["the source's", "the reader's"])
def test_an_agent_that_is_stopped_costs_no_more_than_the_deadline(pair, whose):
    agents = pair.agents[whose == "the reader's"]
    os.kill(pid_of(agents), signal.SIGSTOP)
    began_s = time.monotonic()
    settled = pair.pull(deadline_s=0.5)
    assert (settled.outcome, any(settled.arrived)) == ("late", False)
    assert time.monotonic() - began_s < SOON_S / 2
    pair.assert_next_pull_gives_all()


def test_a_source_whose_agent_goes_on_after_the_deadline_changes_no_page(pair):
    """Pages that it was asked for may come any time: into staging memory that nobody looks at."""
    pid = pid_of(pair.agents[0])
    os.kill(pid, signal.SIGSTOP)
    assert pair.pull(deadline_s=0.5).outcome == "late"
    before = pair.here.memory.pages.copy()
    os.kill(pid, signal.SIGCONT)
    pair.there.transfer._side.nixl.agent()  # it answers, so it has gone on
    assert (pair.here.memory.pages == before).all()
    pair.assert_next_pull_gives_all()
    assert pid_of(pair.agents[0]) == pid


def test_no_agent_can_write_to_pages(pair):
    for agents in pair.agents:
        maps = Path(f"/proc/{pid_of(agents)}/maps").read_text().splitlines()
        of_pages = [line.split()[1] for line in maps if "firelane-kv" in line]
        assert of_pages == ["r--s"] * 2  # pages and tags


def test_an_agent_has_few_rights(pair):
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{pid_of(pair.agents[0])}/status").read_text().splitlines()
    )
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")


def test_agents_end_with_their_engine(pair):
    pids = [pid_of(agents) for agents in pair.agents]
    for engine in (pair.here, pair.there):
        engine.transfer.close()
    for pid in pids:
        assert not Path(f"/proc/{pid}").exists()
