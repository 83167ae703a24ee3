"""Several engines of one model as one: their states, sizes, figures and child processes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from firelane.engine_state import LinkState
from firelane.gateway.engines.link.link import EngineLink
from firelane.wire.frames import Beat, EngineStats, Progress, Ready

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


TIER_COUNTERS = ("hits", "evicted", "damaged", "read_bytes", "written_bytes")
COUNTERS = frozenset(
    {
        *("prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits"),
        *("spec_drafts", "spec_draft_tokens", "spec_accepted_tokens"),
        *("preemptions", "steps", "grammar_failures", "state_snapshot_hits"),
        *("pulls_ok", "pulls_stale", "pulls_lost", "pulls_late", "pulled_bytes", "pull_seconds"),
        *(f"{tier}_{what}" for tier in ("host", "disk") for what in TIER_COUNTERS),
    }
)
"""Fields of EngineStats that only grow; the others are levels, which end with their engine."""
SUMS = ("max_num_seqs", "num_blocks", "weights_bytes", "kv_bytes", "states_bytes", "num_snapshots")
_STATS = EngineStats.__struct_fields__
_NOTHING = EngineStats()


def together(ready: Sequence[Ready]) -> Ready | None:
    """The sizes of several engines of one model together; None of none."""
    if len(ready) < 2:
        return ready[0] if ready else None
    longest = min(one.max_model_len for one in ready)
    sums = {name: sum(getattr(one, name) for one in ready) for name in SUMS}
    adapters = {name: digest for one in ready for name, digest in one.adapters.items()}
    return msgspec.structs.replace(ready[0], max_model_len=longest, adapters=adapters, **sums)


def add_stats(one: EngineStats, other: EngineStats) -> EngineStats:
    if one == _NOTHING:
        return other
    return EngineStats(**{name: getattr(one, name) + getattr(other, name) for name in _STATS})


def add_counters(one: EngineStats, gone: EngineStats) -> EngineStats:
    """With the counters of an engine that has gone."""
    return EngineStats(**{name: getattr(one, name) + getattr(gone, name) for name in COUNTERS})


class EngineChildren:
    """Children that engines have replaced, with those of engines that have gone, and kinds that they lack."""

    def __init__(self, links: Sequence[EngineLink]) -> None:
        self._links = links
        self._gone: Counter[str] = Counter()

    @property
    def replaced(self) -> Mapping[str, int]:
        """Replacements since the start, by kind of process."""
        total = self._gone.copy()
        for link in self._links:
            total.update(link.load.beat.replaced)
        return total

    @property
    def broken(self) -> dict[str, str]:
        """The reason why an engine has no child of a kind, by kind."""
        return {kind: why for link in self._links for kind, why in link.load.beat.broken.items()}

    def gone(self, link: EngineLink) -> None:
        """The engine of this link has ended."""
        self._gone.update(link.load.beat.replaced)
        link.load.beat = Beat(0.0)


class JointFigures:
    """Figures of several engines together, and of those that have gone. All methods belong to one event
    loop."""

    def __init__(self, links: Sequence[EngineLink]) -> None:
        """links: of the engines, which may change at any time."""
        self._links = links
        self._before = EngineStats()
        """Counters of engines that have gone."""
        self.children = EngineChildren(links)
        self.version = ""
        """The version of the weights that new requests get."""
        self.sizes: Ready | None = None
        """Sizes that the engines can take together, also in standby; those of the last ones where there are
        none."""
        self.deaths = 0
        """Engines that ended."""
        self.resumed = 0
        """Requests that went on elsewhere."""
        self.handed_over = 0
        """Requests that went from an engine for prefill to one for decode."""

    @property
    def progress(self) -> Progress | None:
        """Progress of the first engine that loads."""
        loading = (link.engine.progress for link in self._links if link.state is LinkState.STARTING)
        return next((one for one in loading if one is not None), None)

    @property
    def left_s(self) -> int:
        """Time until the next engine is likely to serve, in whole seconds."""
        loading = [link.lifecycle.load_clock for link in self._links if link.state is LinkState.STARTING]
        return min((clock.left_s(time.monotonic()) for clock in loading), default=1)

    @property
    def stats(self) -> EngineStats:
        """Sums; counters with those of engines that have gone."""
        total = self._before
        for link in self._links:
            total = add_stats(total, link.load.stats)
        return total

    @property
    def stats_by_replica(self) -> dict[str, EngineStats]:
        """By the name of the place, which two engines may have for a while."""
        found: dict[str, EngineStats] = {}
        for link in self._links:
            found[link.name] = add_stats(found.get(link.name, EngineStats()), link.load.stats)
        return found

    def resize(self) -> None:
        """Call when an engine has come or gone."""
        ready = [link.ready for link in self._links if link.ready is not None]
        newest = [one for one in ready if one.version == self.version]
        self.sizes = together(newest or ready) or self.sizes

    def gone(self, link: EngineLink) -> None:
        """The engine of this link has ended."""
        self._before = add_counters(self._before, link.load.stats)
        self.children.gone(link)
