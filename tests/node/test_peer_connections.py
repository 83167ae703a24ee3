"""Engines that are connected to each other: real transfers at both ends, without the engines."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from firelane.contract import HostPages
from firelane.engine.peers import EnginePeers, NoPeers, connect_peers
from firelane.kv import KvCache, WantedPage
from firelane.kv.transfer import PlainCopier
from firelane.node import peer_connections
from firelane.node.peer_connections import PeerConnections
from firelane.wire.peers import PeerLost, PeerReady, send


class Core:
    """As much of an engine as its peers see."""

    def __init__(self):
        self.kv = KvCache(4, 4)

    def have_pages_from(self, transfer, address=""):
        self.transfer, self.address = transfer, address


def join(node, identity="model"):
    core = Core()
    memory = HostPages(pages=np.zeros((4, 32), np.uint8), layout_id="layout")
    return core, EnginePeers(node.join(), core, memory, identity, PlainCopier())


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


def play(scenario):
    async def run():
        node = PeerConnections()
        joined = []

        def enter(identity="model"):
            joined.append(join(node, identity))
            return joined[-1]

        try:
            await scenario(enter)
        finally:
            for _, peers in joined:
                await asyncio.to_thread(peers.close)
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


def descriptors(path: Path) -> int:
    """Of a file, in this process; others of the process come and go."""
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
    assert isinstance(connect_peers(None, Core(), memory, "model", PlainCopier()), NoPeers)
