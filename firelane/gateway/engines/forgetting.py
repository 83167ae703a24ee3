"""Pages of a tenant erased by all engines."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from firelane.errors import EngineDeadError
from firelane.gateway.engines.replicas import ReplicaSet
from firelane.wire.frames import ForgetTenant


async def forget_tenant(models: Iterable[ReplicaSet], tenant: str, timeout_s: float) -> tuple[list[int], int]:
    """Pages that each engine has erased, and the number of engines that have not answered in time, or cannot
    be reached. models: the engines of each."""
    asked = [(link, ForgetTenant(tenant, engines.next_id())) for engines in models for link in engines.links]
    answers = [answer for link, frame in asked if (answer := link.commands.forget_tenant(frame)) is not None]
    done, late = await asyncio.wait(answers, timeout=timeout_s) if answers else (set(), set())
    for answer in late:
        answer.cancel()
    return [answer.result() for answer in done], len(asked) - len(done)


async def forget_all(models: Iterable[ReplicaSet], tenants: Iterable[str], timeout_s: float) -> int:
    """Pages of these tenants that all engines have erased. Raises EngineDeadError where an engine has not
    answered in time, or cannot be reached: the others have erased them."""
    engines, pages = list(models), 0
    for tenant in tenants:
        erased, silent = await forget_tenant(engines, tenant, timeout_s)
        pages += sum(erased)
        if silent:
            raise EngineDeadError(f"{silent} of the engines have not erased their cache: try again")
    return pages
