"""The contract of page transfer, over each transport: what may happen to a peer, and that nothing of it gives
a page whose content is not the one of its name."""

from __future__ import annotations

import os
import secrets
import socket
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

from firelane.contract import NO_SNAPSHOT, PageMemory
from firelane.kv import KvCache, StateSave, StateSnapshots, WantedPage, WantedState
from firelane.kv.incoming import STATES
from firelane.kv.transfer import ExportedPool, KVPeerError, PeerTransfer, PlainCopier, page_copier, reader
from firelane.kv.transfer.checksum import checksum
from firelane.nixl.processes import HelperAgents
from tests.kv.shared_pages import page_memory
from tests.kv.thread_agents import ThreadAgents

PAGES, PAGE_BYTES, BLOCK = 40, 9000, 4
LIVE, SNAPSHOTS, STATE_BYTES = 2, 3, 20_032
SOON_S = 20.0


class Engine:
    """A cache over real bytes, and its transfer."""

    def __init__(
        self,
        *,
        maps=True,
        key=b"",
        identity="model",
        layout_id="layout",
        page_bytes=PAGE_BYTES,
        copier=None,
        has_states=False,
        agents=None,
    ):
        shared = maps or agents is not None
        self.memory = page_memory(PAGES, page_bytes, layout_id=layout_id, shared=shared)
        self.states = states = None
        if has_states:
            self.states = page_memory(LIVE + SNAPSHOTS, STATE_BYTES, layout_id="states", shared=shared)
            states = StateSnapshots(SNAPSHOTS, block_size=BLOCK, first=LIVE)
        self.kv = KvCache(PAGES, BLOCK, states=states)
        self.lost = []
        self.pool = ExportedPool(self.memory, self.kv, identity, copier, self.states)
        self.transfer = PeerTransfer(
            self.pool,
            key=key,
            maps=maps,
            nixl=agents,
            on_lost=lambda peer, reason: self.lost.append((peer, reason)),
        )

    def close(self):
        self.transfer.close()
        for memory in (self.memory, self.states):
            if memory is not None and memory.fd >= 0:
                os.close(memory.fd)

    def fill(self, prompt, salt=b""):
        """Compute a prompt; returns what its pages hold, by name."""
        chain = self.kv.chain(salt)
        tables = self.kv.share(len(prompt), self.kv.search.no_hit)
        self.kv.reserve(tables, self.kv.search.no_hit)
        pages = tables.held(0)
        for page in pages:
            self.memory.pages[page] = np.frombuffer(secrets.token_bytes(self.memory.page_bytes), np.uint8)
        self.kv.publish(tables, chain, prompt, len(prompt) // BLOCK)
        self.kv.release(tables)
        return {
            name: self.memory.pages[page].copy()
            for name, page in zip(chain.names(prompt, len(prompt) // BLOCK), pages, strict=False)
        }

    def save(self, prompt):
        """Leave a snapshot behind a prompt of whole blocks; returns what it holds."""
        states = self.kv.states
        held, save = states.begin(NO_SNAPSHOT, ()), StateSave(0, len(prompt), next(states.free()), False)
        states.take(held, save)
        place = self.states.pages[LIVE + save.snapshot]
        place[:] = np.frombuffer(secrets.token_bytes(STATE_BYTES), np.uint8)
        states.publish(held, save, self.kv.chain(b""), prompt)
        return place.copy()

    def pull_state(self, peer, prompt):
        """The settled pull, and the prompt's state here, of as many tokens as came."""
        names = self.kv.search.wanted_states(self.kv.chain(b""), prompt, len(prompt))
        state = WantedState(names, self.kv.states.incoming.begin())
        self.transfer.pull(peer, [], [], time.monotonic() + SOON_S, state)
        self.kv.check_integrity([])
        settled = self.settled()
        came = names[settled.state] if settled.state >= 0 else b""
        self.kv.states.incoming.settle(state.place, came, state.tenant)
        self.kv.check_integrity([])
        return settled, self.states.pages[self.kv.locate(STATES, came)[0]] if came else None

    def wanted(self, prompt, salt=b""):
        return self.kv.search.wanted(self.kv.chain(salt), prompt, len(prompt))

    def pull(self, peer, wanted, deadline_s=SOON_S):
        """The settled pull, its pages in the cache."""
        mine = self.kv.incoming.begin(wanted, len(wanted))
        ticket = self.transfer.pull(peer, wanted, mine, time.monotonic() + deadline_s)
        self.kv.check_integrity([])
        settled = self.settled()
        assert settled.ticket == ticket
        self.kv.incoming.settle(mine, settled.arrived)
        self.kv.check_integrity([])
        return settled

    def settled(self):
        ends_at_s = time.monotonic() + 60
        while not (found := self.transfer.poll()):
            assert time.monotonic() < ends_at_s, "nothing is settled"
            time.sleep(0.001)
        (one,) = found
        return one

    def content(self, wanted):
        """Of the pages that have these names here."""
        places = [(page.name, self.kv.locate(*page.key)[0]) for page in wanted]
        return {name: self.memory.pages[page] for name, page in places if page >= 0}


def connection(transport):
    if transport[0] == "shm":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = socket.create_connection(server.getsockname())
        return server.accept()[0], reader


@pytest.fixture(params=["plain", "native"], scope="module")
def copier(request, cache_dir):
    return PlainCopier() if request.param == "plain" else page_copier(cache_dir)


AGENTS = {"nixl": ThreadAgents, "nixl-installed": HelperAgents}


@pytest.fixture(params=["shm", "tcp", "nixl"])
def transport(request, copier):
    return request.param, copier


def engine_of(transport, **facts):
    """An engine that is ready for this transport."""
    name, copier = transport
    agents = AGENTS[name]() if name in AGENTS else None
    return Engine(maps=name == "shm", copier=copier, agents=agents, **facts)


@contextmanager
def pair(transport, reader=None, **source):
    """A source and a reader that is attached to it."""
    there = engine_of(transport, **source)
    here = engine_of(transport, **(source if reader is None else reader))
    try:
        if transport[0] in AGENTS:
            here.transfer.prepare()
            there.transfer.prepare()
        yield there, here
    finally:
        here.close()
        there.close()


def attach(transport, there, here):
    sock, mine = connection(transport)
    there.transfer.export(sock)
    return here.transfer.attach(mine)


def with_checksum(engine, computed):
    """The engine as a source, whose checksums are computed so."""
    plain = PlainCopier()
    plain.checksum = computed
    plain.send = engine.pool.copier.send
    engine.pool.copier = plain


def prompt(count, first=0):
    return np.arange(first, first + count, dtype=np.int32)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, content in found.items():
        assert np.array_equal(content, expected[name])


def test_pages_come_by_their_names(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        assert peer == there.transfer.engine_id
        assert here.transfer.transport(peer) == transport[0].removesuffix("-installed")
        expected = there.fill(prompt(80))
        wanted = here.wanted(prompt(81))
        settled = here.pull(peer, wanted)
        assert (settled.outcome, settled.nbytes) == ("ok", 20 * PAGE_BYTES)
        assert_same(here.content(wanted), expected)
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(81), 81).num_blocks == 20
        assert not here.wanted(prompt(81))


def test_only_missing_pages_travel(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(32))
        here.fill(prompt(12))
        wanted = here.wanted(prompt(33))
        assert len(wanted) == 5
        assert here.pull(peer, wanted).nbytes == 5 * PAGE_BYTES


def test_a_tenant_finds_no_pages_of_another(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16), salt=b"acme")
        settled = here.pull(peer, here.wanted(prompt(17), salt=b"other"))
        assert (settled.outcome, settled.nbytes) == ("stale", 0)
        assert here.kv.num_used_pages == 0


def test_pages_that_are_not_there_are_missing_and_the_others_come(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        expected = there.fill(prompt(16))
        wanted = here.wanted(prompt(33))
        settled = here.pull(peer, wanted)
        assert (settled.outcome, settled.arrived) == ("stale", [True] * 4 + [False] * 4)
        assert_same(here.content(wanted), expected)


def test_a_page_that_is_given_out_while_it_is_copied_is_stale(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        expected = there.fill(prompt(16))

        def given_out(page):
            there.kv.forget()
            return checksum(page)

        with_checksum(there, given_out)
        wanted = here.wanted(prompt(17))
        settled = here.pull(peer, wanted)
        assert settled.outcome == "stale"
        assert not any(settled.arrived)
        assert not here.content(wanted)
        there.pool.copier = transport[1]
        expected = there.fill(prompt(16))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)


def test_altered_bytes_are_not_used(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16))
        spoilt = iter([False, True, False, False])

        def altered(page):
            result = checksum(page)
            page[4321] ^= 8 * next(spoilt)
            return result

        with_checksum(there, altered)
        settled = here.pull(peer, here.wanted(prompt(17)))
        assert (settled.outcome, settled.arrived) == ("stale", [True, False, True, True])


def test_a_peer_that_is_not_attached_is_lost(transport):
    with pair(transport) as (there, here):
        assert here.pull("nobody", here.wanted(prompt(9))).outcome == "lost"
        peer = attach(transport, there, here)
        here.transfer.detach(peer)
        assert here.pull(peer, here.wanted(prompt(9))).outcome == "lost"


def test_a_peer_that_hangs_up_is_lost_and_told_of_once(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.transfer.close()
        assert [here.pull(peer, here.wanted(prompt(9))).outcome for _ in range(2)] == ["lost", "lost"]
        assert [one for one, _ in here.lost] == [peer]


def test_a_slow_peer_is_late_and_its_pages_stay_reserved_until_then(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.fill(prompt(16))
        go_on = threading.Event()
        with_checksum(there, lambda page: go_on.wait(60) and checksum(page))
        settled = here.pull(peer, here.wanted(prompt(17)), deadline_s=0.05)
        go_on.set()
        assert (settled.outcome, settled.arrived) == ("late", [False] * 4)
        assert [one for one, _ in here.lost] == [peer]
        again = attach(transport, there, here)
        assert here.pull(again, here.wanted(prompt(17))).outcome == "ok"


def test_another_life_is_another_peer(transport):
    with pair(transport) as (there, here):
        peer = attach(transport, there, here)
        there.transfer.close()
        other = engine_of(transport)
        other.fill(prompt(16))
        try:
            again = attach(transport, other, here)
            assert again != peer
            assert here.pull(peer, here.wanted(prompt(17))).outcome == "lost"
            assert here.pull(again, here.wanted(prompt(17))).outcome == "ok"
        finally:
            other.close()


@pytest.mark.parametrize(
    ("reader", "reason"),
    [
        ({"identity": "another"}, "another model"),
        ({"layout_id": "another"}, "laid out differently: another"),
        ({"page_bytes": 512}, r"laid out differently: layout \(512 B\)"),
        ({"key": b"other"}, "keys of the cluster differ"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(transport, reader, reason):
    with pair(transport, reader=reader) as (there, here), pytest.raises(KVPeerError, match=reason):
        attach(transport, there, here)


def test_pages_are_private_unless_both_can_map_them(copier):
    """A source without a file in memory sends its pages over the Unix socket."""
    there, here = Engine(maps=False, copier=copier), Engine(maps=True, copier=copier)
    try:
        expected = there.fill(prompt(16))
        peer = attach(("shm", copier), there, here)
        wanted = here.wanted(prompt(17))
        assert here.pull(peer, wanted).outcome == "ok"
        assert_same(here.content(wanted), expected)
    finally:
        here.close()
        there.close()


def test_the_longest_state_that_is_there_comes(transport):
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        there.save(prompt(8))
        expected = there.save(prompt(24))
        settled, state = here.pull_state(peer, prompt(41))
        assert (settled.outcome, settled.nbytes) == ("ok", STATE_BYTES)
        assert np.array_equal(state, expected)
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(41), 41).num_blocks == 0
        there.fill(prompt(40))
        assert here.pull(peer, here.wanted(prompt(41))).outcome == "ok"
        assert here.kv.search.lookup(here.kv.chain(b""), prompt(41), 41).num_blocks == 6
        settled, state = here.pull_state(peer, prompt(41))
        assert (settled.state, state) == (-1, None)  # a shorter one is of no use now


def test_a_state_far_behind_the_end_is_found(transport, monkeypatch):
    monkeypatch.setattr(reader, "STATES_BATCH", 3)
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        expected = there.save(prompt(4))
        settled, state = here.pull_state(peer, prompt(41))
        assert settled.state == 9
        assert np.array_equal(state, expected)


@pytest.mark.parametrize("spoils", ["given out", "altered", "nothing there"])
def test_a_state_that_is_not_what_it_was_said_to_be_does_not_come(transport, spoils):
    with pair(transport, has_states=True) as (there, here):
        peer = attach(transport, there, here)
        if spoils != "nothing there":
            there.save(prompt(8))

        def spoilt(page):
            result = checksum(page)
            if spoils == "given out":
                there.kv.forget()
            else:
                page[4321] ^= 8
            return result

        with_checksum(there, spoilt)
        settled, state = here.pull_state(peer, prompt(13))
        assert (settled.outcome, settled.state, settled.nbytes, state) == ("ok", -1, 0, None)
        assert here.kv.states.num_named == 0


def test_a_model_with_states_has_no_pages_of_one_without(transport):
    facts = {"has_states": True}
    with (
        pair(transport, reader=facts) as (there, here),
        pytest.raises(KVPeerError, match=r"laid out differently: layout\+states \(9000 B, 20032 B\)"),
    ):
        attach(transport, there, here)


def test_memory_layouts_are_seen_as_they_are():
    memory = PageMemory(pages=np.zeros((3, 5), np.uint8), layout_id="x")
    assert (memory.num_pages, memory.page_bytes, memory.fd) == (3, 5, -1)
    assert WantedPage(0, b"n").group == 0
