"""Engines that have pages from each other, without their loops."""

from __future__ import annotations

import os
import secrets
import socket
import time
from contextlib import contextmanager

import numpy as np

from firelane.contract import NO_SNAPSHOT
from firelane.kv import KvCache, StateSave, StateSnapshots, WantedPage, WantedState
from firelane.kv.pool import STATES
from firelane.kv.transfer.exported import ExportedPool
from firelane.kv.transfer.page_copy import PageCopier
from firelane.kv.transfer.peers import PeerTransfer
from firelane.nixl.processes import HelperAgents
from tests.kv.shared_pages import array_of, page_memory
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
        copied=False,
    ):
        kind = {"shared": maps or agents is not None, "copied": copied}
        self.memory = page_memory(PAGES, page_bytes, layout_id=layout_id, **kind)
        self.states = states = None
        if has_states:
            self.states = page_memory(LIVE + SNAPSHOTS, STATE_BYTES, layout_id="states", **kind)
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
            array_of(self.memory)[page] = np.frombuffer(secrets.token_bytes(self.memory.page_bytes), np.uint8)
        self.kv.publish(tables, chain, prompt, len(prompt) // BLOCK)
        self.kv.release(tables)
        return {
            name: array_of(self.memory)[page].copy()
            for name, page in zip(chain.names(prompt, len(prompt) // BLOCK), pages, strict=False)
        }

    def save(self, prompt):
        """Leave a snapshot behind a prompt of whole blocks; returns what it holds."""
        states = self.kv.states
        held, save = states.begin(NO_SNAPSHOT, ()), StateSave(0, len(prompt), next(states.free()), False)
        states.take(held, save)
        place = array_of(self.states)[LIVE + save.snapshot]
        place[:] = np.frombuffer(secrets.token_bytes(STATE_BYTES), np.uint8)
        states.publish(held, save, self.kv.chain(b""), prompt)
        return place.copy()

    def pull_state(self, peer, prompt):
        """The settled pull, and the prompt's state here, of as many tokens as came."""
        names = self.kv.search.wanted_states(self.kv.chain(b""), prompt, len(prompt))
        (place,) = self.kv.states.incoming.begin([WantedPage(STATES, names[0])], 1)
        state = WantedState(names, place)
        self.transfer.pull(peer, [], [], time.monotonic() + SOON_S, state)
        self.kv.check_integrity([])
        settled = self.settled()
        came = names[settled.state] if settled.state >= 0 else b""
        self.kv.states.incoming.settle_as(state.place, came)
        self.kv.check_integrity([])
        return settled, array_of(self.states)[self.kv.locate(STATES, came)[0]] if came else None

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
        """Return the contents of the pages that have these names here, by name."""
        places = [(page.name, self.kv.locate(*page.key)[0]) for page in wanted]
        return {name: array_of(self.memory)[page] for name, page in places if page >= 0}


def connection(transport):
    if transport[0] == "shm":
        return socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server:
        reader = socket.create_connection(server.getsockname())
        return server.accept()[0], reader


AGENTS = {"nixl": ThreadAgents, "nixl-installed": HelperAgents}


def engine_of(transport, **facts):
    """An engine that is ready for this transport."""
    name, copier = transport
    agents = AGENTS[name]() if name in AGENTS else None
    return Engine(maps=name == "shm", copier=copier, agents=agents, copied=name == "copied", **facts)


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
    there.transfer.export(sock, ciphers=transport[0] == "ciphered")
    return here.transfer.attach(mine)


def with_checksum(engine, computed):
    """The engine as a source, whose checksums are computed so."""
    plain = PageCopier()
    plain.checksum = computed
    plain.send = engine.pool.copier.send
    engine.pool.copier = plain


def prompt(count, first=0):
    return np.arange(first, first + count, dtype=np.int32)


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, content in found.items():
        assert np.array_equal(content, expected[name])
