"""Ranks as text: what each runs, what it moves in a step, and how long stages wait for each other."""

from __future__ import annotations

from collections.abc import Sequence

from firelane.parallel.balance import cut
from firelane.parallel.ranks import RankLayout, rank_program
from firelane.parallel.segments import segmented
from firelane.parallel.shard import whole_products
from firelane.parallel.stage import unit_costs
from firelane.program.ops import GatherRows
from firelane.program.printer import format_program
from firelane.program.program import Program


def describe_ranks(program: Program, layout: RankLayout) -> str:
    """A table of each rank's program, and what they have in common. Raises UsageError."""
    programs = [rank_program(program, layout, rank) for rank in range(layout.ranks)]
    parts = [f"rank {rank}: " + format_program(own) for rank, own in enumerate(programs)]
    divided = [
        op.out.name for own in programs[:: layout.lanes] for op in own.ops if isinstance(op, GatherRows)
    ]
    if divided:
        parts.append(f"rows divided among ranks: {', '.join(divided)}")
    if layout.lanes > 1:
        whole = whole_products(program, layout.lanes, attention=layout.attention)
        if left := [name for name in whole if name not in divided]:
            parts.append(f"whole on every rank: {', '.join(left)}")
    if layout.pp > 1:
        costs = stage_costs(program, layout.pp)
        shares = ", ".join(f"{cost / sum(costs):.1%}" for cost in costs)
        parts.append(f"stages take {shares} of a step; bubble of a full pipeline {bubble(costs):.1%}")
    return "\n\n".join(parts)


def stage_costs(program: Program, pp: int) -> list[float]:
    """Cost of each stage, in bytes, as stage.unit_costs() counts it."""
    costs = unit_costs(segmented(program))
    return [sum(costs[run.start : run.stop]) for run in cut(costs, pp)]


def bubble(costs: Sequence[float]) -> float:
    """The share of its time that a stage waits for the slowest, on average, with as many steps in flight as
    there are stages."""
    return 1 - sum(costs) / (len(costs) * max(costs))
