"""The plan of a node: its policy, and the control groups of its engines. A server of fixed models has the
simplest one.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from firelane.node.engine_process import StartEngine, start_engine
from firelane.node.memory_groups import NO_GROUPS, MemoryGroups
from firelane.node.policy import NodePolicy


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """is_fixed: all models are loaded at the start, and one that does not start ends the server.
    groups: of its engines. start: makes the processes of these."""

    policy: NodePolicy = field(default_factory=NodePolicy)
    is_fixed: bool = False
    groups: MemoryGroups = NO_GROUPS
    start: StartEngine = start_engine


FIXED = NodePlan(is_fixed=True)
"""The plan of a server that no file describes."""
