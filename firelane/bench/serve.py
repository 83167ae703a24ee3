"""Drive an OpenAI-compatible server with a load."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from firelane.bench.client import LoadClient, Outcome, Recording, read_outcome
from firelane.bench.workload import BenchRequest

OnDone = Callable[[int], None]
"""Called with the number of requests that have ended."""


@dataclass(frozen=True, kw_only=True)
class ServeLoad:
    """When requests are sent: `arrivals_s[i]` after the start (None: as soon as there is room), never
    more than `concurrency` at a time (None: no bound)."""

    concurrency: int | None = None
    arrivals_s: Sequence[float] | None = None


def run_load(
    client: LoadClient, requests: Sequence[BenchRequest], load: ServeLoad, on_done: OnDone | None = None
) -> tuple[list[Outcome], float]:
    """Send all requests; returns their outcomes in order, and the wall time in seconds."""
    import uvloop

    recordings, seconds = uvloop.run(_send_all(client, requests, load, on_done))
    return [read_outcome(r) for r in recordings], seconds


async def _send_all(
    client: LoadClient, requests: Sequence[BenchRequest], load: ServeLoad, on_done: OnDone | None = None
) -> tuple[list[Recording], float]:
    room = asyncio.Semaphore(load.concurrency or len(requests))
    done = 0
    start = time.perf_counter()

    async def send(index: int) -> Recording:
        nonlocal done
        if load.arrivals_s is not None:
            await asyncio.sleep(max(0.0, load.arrivals_s[index] - (time.perf_counter() - start)))
        async with room:
            recording = await client.complete(requests[index])
        done += 1
        if on_done is not None:
            on_done(done)
        return recording

    recordings = await asyncio.gather(*(send(i) for i in range(len(requests))))
    return recordings, time.perf_counter() - start
