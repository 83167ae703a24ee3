"""The urgency of a request: its priority, and the time by which its answer has to be complete."""

from __future__ import annotations

import math
from typing import NamedTuple

from firelane.wire.frames import NewRequest


class Urgency(NamedTuple):
    """priority: lower is served sooner. due_s: the deadline by the engine's clock; infinite: none.
    output_tokens: that have to be there by then."""

    priority: int = 0
    due_s: float = math.inf
    output_tokens: int = 1

    @property
    def has_deadline(self) -> bool:
        return self.due_s < math.inf


PLAIN = Urgency()
"""The urgency of a request that says nothing about it, told apart by identity."""


def urgency_of(request: NewRequest, now_s: float) -> Urgency:
    """now_s: the time of its arrival at the engine."""
    if not request.priority and request.deadline_ms <= 0:
        return PLAIN
    due_s = now_s + request.deadline_ms / 1000 if request.deadline_ms > 0 else math.inf
    return Urgency(request.priority, due_s, max(1, request.due_tokens))
