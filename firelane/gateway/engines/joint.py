"""The states and figures of several engines of one model, as those of one."""

from __future__ import annotations

import time
from collections.abc import Sequence

from firelane.engine_state import LinkState
from firelane.gateway.engines.link.link import EngineLink
from firelane.gateway.engines.routing.sizes import add_stats
from firelane.wire.frames import EngineStats, Progress

ORDER = (LinkState.READY, LinkState.STARTING, LinkState.STANDBY)
"""The first of these that an engine has is the state of all."""


def state(links: Sequence[EngineLink], *, is_coming: bool) -> LinkState:
    """is_coming: where there is none of them, one is starting all the same."""
    states = {link.state for link in links}
    return next((s for s in ORDER if s in states), LinkState.STARTING if is_coming else LinkState.DEAD)


def reason(links: Sequence[EngineLink], *, is_coming: bool) -> str:
    """The reason why none serves; "" where one does. is_coming: as in `state`."""
    if any(link.state is LinkState.READY for link in links):
        return ""
    none = "the engine is starting" if is_coming else "there is no engine"
    return next((link.engine.reason for link in links if link.engine.reason), none)


def progress(links: Sequence[EngineLink]) -> Progress | None:
    """Progress of the first engine that loads."""
    loading = (link.engine.progress for link in links if link.state is LinkState.STARTING)
    return next((one for one in loading if one is not None), None)


def left_s(links: Sequence[EngineLink]) -> int:
    """Time until the next engine is likely to serve, in whole seconds."""
    loading = [link.load_clock for link in links if link.state is LinkState.STARTING]
    return min((clock.left_s(time.monotonic()) for clock in loading), default=1)


def stats(before: EngineStats, links: Sequence[EngineLink]) -> EngineStats:
    """Sums. before: counters of engines that have gone."""
    total = before
    for link in links:
        total = add_stats(total, link.stats)
    return total


def stats_by_replica(links: Sequence[EngineLink]) -> dict[str, EngineStats]:
    """By the name of the place, which two engines may have for a while."""
    found: dict[str, EngineStats] = {}
    for link in links:
        found[link.name] = add_stats(found.get(link.name, EngineStats()), link.stats)
    return found
