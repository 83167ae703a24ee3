"""The end of a server by signals, with a server that drains when it is told to."""

from __future__ import annotations

import asyncio
import os
import signal

from firelane.node.shutdown import DRAIN_S, Shutdown


class Server:
    in_flight = 3

    def __init__(self):
        self.empty = asyncio.Event()
        self.limits_s = []

    async def drain(self, timeout_s):
        self.limits_s.append(timeout_s)
        await self.empty.wait()


def test_it_begins_with_a_signal_and_ends_when_nothing_is_in_flight():
    async def scenario():
        shutdown, server = Shutdown(), Server()
        shutdown.listen()
        os.kill(os.getpid(), signal.SIGTERM)
        await shutdown.wait()
        draining = asyncio.ensure_future(shutdown.drain(server))
        await asyncio.sleep(0)
        assert not draining.done()
        server.empty.set()
        await draining
        assert server.limits_s == [DRAIN_S]

    asyncio.run(asyncio.wait_for(scenario(), 120))


def test_who_asks_again_does_not_wait():
    async def scenario():
        shutdown = Shutdown()
        shutdown.ask()
        assert shutdown.has_begun
        draining = asyncio.ensure_future(shutdown.drain(Server()))
        await asyncio.sleep(0)
        shutdown.ask()
        await draining

    asyncio.run(asyncio.wait_for(scenario(), 120))
