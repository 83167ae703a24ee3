"""Engines that are connected to each other: real transfers at both ends, without the engines."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from firelane.backends.cpu.memory import renew, shared_zeroed
from firelane.contract import HostPages
from firelane.engine.process.peering import NoPeers, connect_peers
from firelane.engine.process.peers import EnginePeers
from firelane.kv import KvCache, WantedPage
from firelane.kv.transfer.page_copy import PageCopier
from firelane.link.packets import send
from firelane.node import peer_connections
from firelane.node.peer_connections import PeerConnections
from firelane.wire.peers import PeerConnection, PeerLost, PeerReady


class Core:
    """The part of an engine that its peers see, with pages of one block each."""

    def __init__(self, *, shared=False):
        self.kv = KvCache(4, 4)
        self._fd, self._bytes = shared_zeroed(4 * 32) if shared else (-1, np.zeros(4 * 32, np.uint8))
        pages = self._bytes[: 4 * 32].reshape(4, 32)
        self.memory = HostPages(pages=pages, layout_id="layout", fd=self._fd)

    def publish(self, salt, value):
        """A page of this content; returns its name."""
        tokens, chain = np.arange(4, dtype=np.int32), self.kv.chain(salt)
        tables = self.kv.share(4, self.kv.search.no_hit)
        self.kv.reserve(tables, self.kv.search.no_hit)
        self.memory.pages[tables.held(0)] = value
        self.kv.publish(tables, chain, tokens, 1)
        self.kv.release(tables)
        return WantedPage(0, chain.names(tokens, 1)[0])

    def standby(self, peers):
        """Go to standby like EngineStandby."""
        self.kv.forget()
        peers.standby()
        renew(self._fd, self._bytes)

    def close(self):
        if self._fd >= 0:
            os.close(self._fd)

    def have_pages_from(self, transfer, address=""):
        self.transfer, self.address = transfer, address


def join(node, identity="model", *, shared=False):
    core = Core(shared=shared)
    return core, EnginePeers(node.join(), core, core.memory, identity, PageCopier())


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def play(scenario):
    async def run():
        node = PeerConnections()
        joined = []

        def enter(identity="model", **options):
            joined.append(join(node, identity, **options))
            return joined[-1]

        try:
            await scenario(enter)
        finally:
            for core, peers in joined:
                await asyncio.to_thread(peers.close)
                core.close()
            node.close()

    asyncio.run(run())


async def settled_of(transfer):
    found = []
    await until(lambda: found.extend(transfer.poll()) or found)
    return found[0]


def knows(core, *others):
    return sorted(core.transfer.peers) == sorted(peers.engine_id for _, peers in others)


def test_each_engine_gets_to_know_all_others():
    async def scenario(enter):
        first, second, third = enter(), enter(), enter()
        await until(lambda: knows(first[0], second, third))
        await until(lambda: knows(second[0], first, third))
        await until(lambda: knows(third[0], first, second))

    play(scenario)


def test_engines_that_have_parted_are_connected_again(monkeypatch):
    monkeypatch.setattr(peer_connections, "FIRST_DELAY_S", 0.01)

    async def scenario(enter):
        first, second = enter(), enter()
        await until(lambda: knows(first[0], second) and knows(second[0], first))
        transfer, wanted = first[0].transfer, [WantedPage(0, b"name")]
        transfer.pull(second[1].engine_id, wanted, [0], time.monotonic() - 1)  # late: it hangs up
        assert (await settled_of(transfer)).outcome == "late"
        await until(lambda: knows(first[0], second))
        transfer.pull(second[1].engine_id, wanted, [0], time.monotonic() + 60)
        assert (await settled_of(transfer)).outcome == "stale"

    play(scenario)


def test_another_model_is_refused_and_not_asked_all_the_time(monkeypatch, caplog):
    monkeypatch.setattr(peer_connections, "FIRST_DELAY_S", 60.0)

    async def scenario(enter):
        first, _ = enter(), enter("another")
        await until(lambda: len(caplog.records) == 2)
        assert all("another model" in record.getMessage() for record in caplog.records)
        assert first[0].transfer.peers == []

    play(scenario)


def test_an_engine_that_is_gone_is_forgotten():
    async def scenario(enter):
        first, second = enter(), enter()
        await until(lambda: knows(first[0], second))
        await asyncio.to_thread(second[1].close)
        third = enter()
        await until(lambda: third[1].engine_id in first[0].transfer.peers)
        assert second[1].engine_id not in third[0].transfer.peers

    play(scenario)


def mapped():
    """Files of pages that this process has mapped, whoever made them."""
    return Path("/proc/self/maps").read_text().count("firelane-kv ")


def test_an_engine_in_standby_is_let_go_and_comes_back():
    """Memory that others have mapped would stay."""

    async def scenario(enter):
        first, second, third = (enter(shared=True) for _ in range(3))
        everyone = (first, second, third)

        def all_know():
            return all(knows(one[0], *(o for o in everyone if o is not one)) for one in everyone)

        await until(all_know)
        with_peers = mapped()
        await asyncio.to_thread(first[1].standby)
        assert first[0].transfer.peers == []
        await until(lambda: knows(second[0], third) and knows(third[0], second))
        await until(lambda: mapped() == with_peers - 4)  # it has none of theirs, and they have none of it
        await asyncio.to_thread(second[1].standby)
        await until(lambda: knows(third[0]))
        for one in (second, first):
            await asyncio.to_thread(one[1].wake)
        await until(all_know)
        assert mapped() == with_peers

    play(scenario)


def test_pages_forgotten_in_standby_are_not_had_under_their_old_names():
    async def scenario(enter):
        (source, peers), reader = enter(shared=True), enter(shared=True)
        await until(lambda: peers.engine_id in reader[0].transfer.peers)
        old = source.publish(b"one", 7)
        assert await pulled(reader[0], peers, old) == ("ok", 7)
        page, tag = source.kv.locate(*old.key)
        await asyncio.to_thread(source.standby, peers)
        assert not source.memory.pages.any()
        await asyncio.to_thread(peers.wake)
        await until(lambda: peers.engine_id in reader[0].transfer.peers)
        assert (await pulled(reader[0], peers, old))[0] == "stale"
        new = source.publish(b"two", 9)
        assert source.kv.locate(*new.key) == (page, tag + 2)
        assert await pulled(reader[0], peers, new) == ("ok", 9)

    play(scenario)


async def pulled(reader, source, wanted):
    """The outcome, and what is in the reader's first page then."""
    reader.transfer.pull(source.engine_id, [wanted], [0], time.monotonic() + 60)
    outcome = (await settled_of(reader.transfer)).outcome
    return outcome, int(reader.memory.pages[0, 0])


def test_a_standby_before_the_first_connection():
    """An engine that sleeps takes no connection, however late that comes."""

    async def scenario(enter):
        first = enter(shared=True)
        await asyncio.to_thread(first[1].standby)
        second = enter(shared=True)
        ours, theirs = socket.socketpair()
        with ours:
            first[1]._connect(PeerConnection("source", "other"), theirs)
            assert await asyncio.to_thread(ours.recv, 1) == b""
        await asyncio.to_thread(first[1].wake)
        await until(lambda: knows(first[0], second) and knows(second[0], first))

    play(scenario)


def descriptors(path: Path) -> int:
    """Count the descriptors of a file in this process; descriptors of other files come and go."""
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):
            found += entry.readlink() == path.resolve()
    return found


def test_who_is_not_here_is_not_connected_again():
    """Ids of engines of other servers may come from clients: nothing is kept of them, nor of descriptors."""

    async def test():
        node = PeerConnections()
        with node.join() as engine, Path(__file__).open() as file:
            for number in range(9):
                send(engine, PeerLost(f"elsewhere{number}"), (file.fileno(),))
                await asyncio.sleep(0)
            send(engine, PeerReady("here"))
            await until(lambda: node._members[0].engine_id == "here")
            assert node._members[0].delays == {}
            assert descriptors(Path(file.name)) == 1
        node.close()

    asyncio.run(test())


@pytest.mark.parametrize("memory", [None, HostPages(pages=np.zeros((4, 32), np.uint8), layout_id="x")])
def test_without_pages_or_a_socket_there_are_no_peers(memory):
    assert isinstance(connect_peers(None, Core(), memory, "model", PageCopier()), NoPeers)
