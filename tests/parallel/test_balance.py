"""Cuts of programs into stages: all in one stage, nothing torn, the slowest stage as fast as can be."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from firelane.errors import UsageError
from firelane.models.registry import load_program
from firelane.parallel.balance import cut, live_values, units
from firelane.program.ops import Attention, IndexCache, IndexTopK, LatentCache, RopeAndCache
from tests.models.families import FAMILIES

COSTS = st.lists(st.integers(0, 50).map(float), min_size=1, max_size=8)


def largest(costs: list[float], bounds: tuple[int, ...]) -> float:
    return max(sum(costs[first:last]) for first, last in pairwise(bounds))


@given(costs=COSTS, stages=st.integers(1, 8))
def test_no_cut_has_a_faster_slowest_stage(costs: list[float], stages: int) -> None:
    stages = min(stages, len(costs))
    runs = cut(costs, stages)
    every = [(0, *inner, len(costs)) for inner in combinations(range(1, len(costs)), stages - 1)]
    assert [i for run in runs for i in run] == [*range(len(costs))]
    assert all(len(run) for run in runs)
    assert max(sum(costs[i] for i in run) for run in runs) == min(largest(costs, b) for b in every)


@pytest.mark.parametrize(
    ("costs", "stages", "sizes"),
    [
        ([1.0] * 8, 4, [2, 2, 2, 2]),
        ([1.0] * 8, 3, [2, 3, 3]),
        ([1.0, 1.0, 1.0, 1.0, 1.0, 3.0], 2, [4, 2]),  # a head that costs as much as three layers
        ([0.0, 2.0, 2.0, 2.0, 0.0], 3, [2, 1, 2]),
        ([5.0], 1, [1]),
    ],
)
def test_costs_decide_not_counts(costs: list[float], stages: int, sizes: list[int]) -> None:
    assert [len(run) for run in cut(costs, stages)] == sizes


@pytest.mark.parametrize("stages", [0, 4])
def test_stages_without_work_are_refused(stages: int) -> None:
    with pytest.raises(UsageError, match=f"{stages} pipeline stages: the model can be cut into 1 to 3"):
        cut([1.0, 2.0, 3.0], stages)


@pytest.mark.parametrize("family", FAMILIES)
def test_units_tear_no_layer_apart(family: str) -> None:
    program = load_program(FAMILIES[family]())
    runs = units(program)
    assert [i for run in runs for i in run] == [*range(len(program.ops))]
    attending = [op for op in program.ops if isinstance(op, Attention)]
    chosen = [op.indices for op in attending if op.indices is not None]
    shared = len(program.cache_layers) < len(attending) or len(set(chosen)) < len(chosen)
    assert shared or len(runs) > len(program.cache_layers), "each layer can be a stage"
    live = live_values(program)
    widths = {sum(v.width for v in live[run.start]) for run in runs[1:]}
    assert len(widths) <= 1
    for run in runs:
        ops = [program.ops[i] for i in run]
        writes = {op.layer for op in ops if isinstance(op, LatentCache | RopeAndCache | IndexCache)}
        assert {op.layer for op in ops if isinstance(op, Attention | IndexTopK)} <= writes
