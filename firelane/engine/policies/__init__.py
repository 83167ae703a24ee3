"""Scheduling policies: whose work comes first. `fcfs` is the plain one, `fair` shares between tenants."""

from __future__ import annotations

from firelane.engine.policies.fair import FairPolicy
from firelane.engine.policies.fcfs import FcfsPolicy
from firelane.engine.policies.policy import SchedulingPolicy


def make_policy(name: str, max_tokens: int) -> SchedulingPolicy:
    """name: as in EngineConfig.scheduling_policy. max_tokens: of a step."""
    return FcfsPolicy() if name == "fcfs" else FairPolicy(max_tokens)
