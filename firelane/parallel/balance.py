"""Stages of a pipeline: where a program may be cut, and where it should be for the fastest slowest stage."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

from firelane.errors import UsageError
from firelane.program.ops import Attention, IndexCache, IndexTopK, LatentCache, RopeAndCache
from firelane.program.program import Program
from firelane.program.values import Rows, Value

_Rating = tuple[float, float]
"""The rating of a cut: the cost of its slowest stage, and the sum of squares of all."""


def units(program: Program) -> tuple[range, ...]:
    """Runs of ops that a stage has whole, in order: all of the program.

    They meet where the fewest numbers a token cross from one op to the next: the residual stream, and what
    every layer reads of the embeddings, if anything. No unit reads a cache layer that another one writes.
    """
    live = live_values(program)
    crossing = [sum(value.width for value in values) for values in live]
    mixers = [i for i, op in enumerate(program.ops) if isinstance(op, Attention) or op.states]
    behind = mixers[(len(mixers) - 1) // 2 :]  # in front, the stream may still be what all layers read, too
    least = min((crossing[i] for i in range(behind[0] + 1, behind[-1] + 1)), default=0) if mixers else 0
    held = _held_together(program) | {i for i, values in enumerate(live) if _are_outputs(values)}
    cuts = [i for i in range(1, len(live)) if 0 < crossing[i] == least and i not in held]
    return tuple(range(first, last) for first, last in pairwise([0, *cuts, len(program.ops)]))


def live_values(program: Program) -> list[list[Value]]:
    """Before each op: the values made already and still to be read."""
    last = {value: i for i, op in enumerate(program.ops) for value in op.inputs}
    alive: list[Value] = []
    found: list[list[Value]] = []
    for i, op in enumerate(program.ops):
        alive = [value for value in alive if last.get(value, -1) >= i]
        found.append(alive)
        alive = [*alive, *op.outputs]
    return found


def cut(costs: Sequence[float], stages: int) -> tuple[range, ...]:
    """The runs of `costs`, one for each stage and none empty, whose largest sum is least; of several such
    cuts the most even one. Raises UsageError where there are more stages than costs."""
    if not 0 < stages <= len(costs):
        raise UsageError(f"{stages} pipeline stages: the model can be cut into 1 to {len(costs)}")
    starts = list(accumulate(costs, initial=0.0))

    @cache
    def best(first: int, left: int) -> tuple[_Rating, int]:
        """The best cut of costs[first:] in `left` stages: its rating, and where the first stage ends."""
        if left == 1:
            total = starts[-1] - starts[first]
            return (total, total * total), len(costs)
        return min(
            (_joined(starts[end] - starts[first], best(end, left - 1)[0]), end)
            for end in range(first + 1, len(costs) - left + 2)
        )

    bounds = [0]
    for left in range(stages, 0, -1):
        bounds.append(best(bounds[-1], left)[1])
    return tuple(range(first, last) for first, last in pairwise(bounds))


def _joined(cost: float, rest: _Rating) -> _Rating:
    return max(cost, rest[0]), cost * cost + rest[1]


def _are_outputs(values: Sequence[Value]) -> bool:
    return any(value.rows is Rows.OUTPUT for value in values)


def _held_together(program: Program) -> set[int]:
    """Ops before which no cut may be: a cache layer is written before, and read after it."""
    written = {
        op.layer: i
        for i, op in enumerate(program.ops)
        if isinstance(op, LatentCache | IndexCache) or (isinstance(op, RopeAndCache) and op.keys)
    }
    read = {op.layer: i for i, op in enumerate(program.ops) if isinstance(op, Attention | IndexTopK)}
    return {i for layer, last in read.items() for i in range(written.get(layer, last) + 1, last + 1)}
