"""Tasks that wait for a change."""

from __future__ import annotations

import asyncio

from firelane.gateway.engines.observer import Waiters


def test_all_that_wait_go_on_at_once_but_for_those_that_are_cancelled():
    async def run():
        waiters = Waiters()
        tasks = [asyncio.ensure_future(waiters.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        tasks[1].cancel()
        waiters.wake()
        later = asyncio.ensure_future(waiters.wait())
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(one) for one in ended] == [type(None), asyncio.CancelledError, type(None)]
        assert not later.done()
        waiters.wake()
        await later

    asyncio.run(run())
