"""The KV cache that an executor's limits ask for."""

from __future__ import annotations

from firelane.contract import CAUSAL, Bidirectional, StepLimits
from firelane.kv import KvCache, SnapshotRule, StateSnapshots


def cache_of(limits: StepLimits, snapshots: SnapshotRule | None, *, is_searched: bool) -> KvCache:
    """The cache of an executor. is_searched: for prefixes of prompts."""
    states = StateSnapshots(
        limits.num_snapshots if is_searched else 0,
        block_size=limits.block_size,
        chunk_tokens=limits.max_num_batched_tokens,
        rule=snapshots,
        is_kept=bool(limits.state_bytes),
        first=limits.max_num_seqs,
    )
    return KvCache(
        limits.num_blocks,
        limits.block_size,
        tuple(CAUSAL if isinstance(span, Bidirectional) else span for span in limits.spans),
        is_searched,
        chunk_tokens=limits.max_num_batched_tokens,
        states=states,
        code=limits.kv_cache_code,
    )
