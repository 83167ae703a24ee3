"""Sizes and counters of several engines as those of one."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from firelane.wire.frames import EngineStats, Ready

TIER_COUNTERS = ("hits", "evicted", "damaged", "read_bytes", "written_bytes")
COUNTERS = frozenset(
    {
        *("prompt_tokens", "generated_tokens", "prefix_queries", "prefix_hits"),
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
    return msgspec.structs.replace(ready[0], max_model_len=longest, **sums)


def add_stats(one: EngineStats, other: EngineStats) -> EngineStats:
    if one == _NOTHING:
        return other
    return EngineStats(**{name: getattr(one, name) + getattr(other, name) for name in _STATS})


def add_counters(one: EngineStats, gone: EngineStats) -> EngineStats:
    """With the counters of an engine that has gone."""
    return EngineStats(**{name: getattr(one, name) + getattr(gone, name) for name in COUNTERS})
