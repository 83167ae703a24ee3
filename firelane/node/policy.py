"""Settings of a node and of each of its models, apart from those of engines and gateway."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ModelPolicy:
    """pinned: in memory from the start of the node to its end. at_start: loaded then, but not held. priority:
    who has less gives memory back first. idle_s: without a request for so long it goes to standby (None:
    only when others need its memory). need_bytes: what it takes when it is ready, as far as that is known
    before."""

    pinned: bool = False
    at_start: bool = False
    priority: int = 0
    idle_s: float | None = None
    need_bytes: int = 0

    @property
    def loads_first(self) -> bool:
        return self.pinned or self.at_start


@dataclass(frozen=True, kw_only=True)
class NodePolicy:
    """budget_bytes: what all models may take together (None: no limit). min_residence_s: how long a model
    that came stays, unless it comes back sooner (memory.STAYS_FOR_COST). patience_s: after which a model that
    finds no idle one has a busy one take no new requests. retry_s, max_retry_s: how long a model whose
    engines did not start is left alone, doubled each time. wake_deadline_s: how long a request waits for its
    model."""

    budget_bytes: int | None = None
    min_residence_s: float = 5.0
    patience_s: float = 2.0
    retry_s: float = 5.0
    max_retry_s: float = 300.0
    wake_deadline_s: float = 300.0
