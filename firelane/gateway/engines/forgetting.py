"""Pages of a tenant erased by all engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.wire.frames import ForgetTenant, Forgotten


async def forget_tenant(models: Iterable[ReplicaSet], tenant: str, timeout_s: float) -> tuple[list[int], int]:
    """Pages that each engine has erased, and the number of engines that have not answered in time, or cannot
    be reached. models: the engines of each."""
    asked = [(link, ForgetTenant(tenant, engines.next_id())) for engines in models for link in engines.links]
    pending = [(_answer(*one), *one) for one in asked]
    answers = [answer for answer, link, frame in pending if link.forget_tenant(frame)]
    done, _ = await asyncio.wait(answers, timeout=timeout_s) if answers else (set(), set())
    for link, _ in asked:
        link.on_forgotten = None
    return [answer.result() for answer in done], len(asked) - len(done)


def _answer(link: EngineLink, asked: ForgetTenant) -> asyncio.Future[int]:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(frame: Forgotten) -> None:
        if frame.id == asked.id and not answer.done():
            answer.set_result(frame.pages)

    link.on_forgotten = take
    return answer
