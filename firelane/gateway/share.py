"""Part of one process in a server of several gateway processes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from firelane.gateway.http.relay import RequestRelay
from firelane.gateway.tenants.counts import Counts, LocalCounts


async def _nothing() -> None:
    """There are no other processes."""


@dataclass(frozen=True, kw_only=True)
class GatewayShare:
    """counts: what all processes count together. relay: to the process that owns what cannot be shared; None:
    it is this one. refresh: has the figures of the others brought up to date. created: Unix time of the
    server's start, None: now.
    """

    counts: Counts = field(default_factory=LocalCounts)
    relay: RequestRelay | None = None
    refresh: Callable[[], Awaitable[None]] = _nothing
    created: int | None = None
