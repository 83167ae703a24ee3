"""Pages of a tenant erased by all engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.gateway.engines.link import EngineLink
from firelane.wire.frames import Forgotten


async def forget_tenant(links: Iterable[EngineLink], tenant: str, timeout_s: float) -> tuple[list[int], int]:
    """Pages that each engine has erased, and the number of engines that have not answered in time."""
    asked = [(link, _answer(link, tenant)) for link in links]
    answers = [answer for link, answer in asked if link.forget_tenant(tenant)]
    done, silent = await asyncio.wait(answers, timeout=timeout_s) if answers else (set(), set())
    for link, _ in asked:
        link.on_forgotten = None
    return [answer.result() for answer in done], len(silent)


def _answer(link: EngineLink, tenant: str) -> asyncio.Future[int]:
    answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def take(frame: Forgotten) -> None:
        if frame.tenant == tenant and not answer.done():
            answer.set_result(frame.pages)

    link.on_forgotten = take
    return answer
