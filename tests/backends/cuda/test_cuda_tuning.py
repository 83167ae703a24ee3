"""Tuning without a device: the way to the fastest config by a stopwatch that makes times up, and the table on
disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from products_harness import assert_near

from benchmarks.cuda_tuning.candidates import is_possible, neighbours
from benchmarks.cuda_tuning.grouped_problem import GroupedProblem, problem_of
from benchmarks.cuda_tuning.problem import LEAST_RUNS, Problem
from benchmarks.cuda_tuning.stopwatch import NEVER, CudaStopwatch
from benchmarks.cuda_tuning.tuner import Measured, table_of, tune
from firelane.backends.cuda.device.launch import Work
from firelane.backends.cuda.device.linear_config import LinearConfig, ProductShape, by_rule, choose
from firelane.backends.cuda.kernels.matmul.tiling import fitting
from firelane.backends.cuda.tuning import store

DECODE = ProductShape(rows=4096, k=4096, gated=False, max_rows=1, is_coded=True)
PREFILL = ProductShape(rows=28672, k=4096, gated=True, max_rows=8192, is_coded=False)
EXPERTS = ProductShape(rows=1536, k=2048, gated=True, max_rows=64, is_coded=True, experts=128, picks=8)
SHAPES = st.builds(
    ProductShape,
    rows=st.sampled_from([64, 4096, 6144, 28672, 128256]),
    k=st.sampled_from([64, 4096, 14336]),
    gated=st.booleans(),
    max_rows=st.integers(1, 10_000),
    is_coded=st.booleans(),
)


@dataclass(frozen=True)
class Labelled:
    """Work that only says which config it is of."""

    config: LinearConfig
    name: str = "nothing"

    def run(self) -> None: ...

    def compile(self) -> None: ...


@dataclass
class MadeUp:
    """A stopwatch; time_of: milliseconds of a config."""

    time_of: Callable[[LinearConfig], float]
    measured: int = 0

    def measure(self, runs: Sequence[Sequence[Work]]) -> float:
        self.measured += 1
        work = runs[0][0]
        assert isinstance(work, Labelled)
        return self.time_of(work.config)


def tuned(shape: ProductShape, time_of: Callable[[LinearConfig], float]) -> Measured:
    return tune([shape], lambda _: lambda config: [[Labelled(config)]], MadeUp(time_of))[shape]


@given(st.one_of(SHAPES, st.builds(replace, SHAPES, experts=st.integers(4, 300), picks=st.integers(1, 4))))
def test_configs_near_the_rule_are_possible(shape: ProductShape) -> None:
    assert is_possible(by_rule(shape), shape)
    near = neighbours(by_rule(shape), shape)
    assert len(near) == len(set(near)) > 1
    assert by_rule(shape) not in near
    assert all(is_possible(config, shape) for config in near)
    assert all(config.warps == 4 for config in near if shape.is_coded and not config.decode_first)


def test_a_possible_config_is_taken_as_it_is() -> None:
    shape = ProductShape(rows=192, k=128, gated=False, max_rows=64, is_coded=True)
    matrix = Problem(shape=shape, device=torch.device("meta")).matrix()
    for config in neighbours(by_rule(shape), shape):
        if not config.decode_first:
            assert fitting(config, matrix, 192) == config


@pytest.mark.parametrize("shape", [DECODE, PREFILL], ids=["decode", "prefill"])
def test_the_way_leads_to_the_fastest(shape: ProductShape) -> None:
    def time_of(config: LinearConfig) -> float:
        return abs(config.stages - 2) + abs(config.warps - 8) / 4 + config.row_tile / 256 + config.parts

    found = tuned(shape, time_of)
    assert (found.config.stages, found.config.parts) == (2, False)
    assert found.config.warps == 8 or (shape.is_coded and not found.config.decode_first)
    assert found.best_ms == min(found.times_ms.values())


def test_noise_and_failures_change_nothing() -> None:
    rule = by_rule(DECODE)
    assert tuned(DECODE, lambda config: 1.0 if config == rule else 0.985).config == rule
    assert tuned(DECODE, lambda config: 1.0 if config == rule else NEVER).config == rule


class Refused:
    """Work whose kernel the compiler does not take."""

    name = "some_kernel"

    def run(self) -> None:
        raise AssertionError("started")

    def compile(self) -> None:
        raise RuntimeError("PassManager::run failed")


def test_a_config_that_the_compiler_refuses_is_never_the_fastest() -> None:
    assert CudaStopwatch().measure([[Refused()]]) == NEVER


def test_a_config_is_measured_once() -> None:
    watch = MadeUp(lambda config: 1 / config.stages)
    found = tune([DECODE], lambda _: lambda config: [[Labelled(config)]], watch)[DECODE]
    assert watch.measured == len(found.times_ms)
    assert found.config.stages > by_rule(DECODE).stages


def test_a_table_is_kept_and_used(tmp_path: Path) -> None:
    table = table_of({DECODE: tuned(DECODE, lambda config: -config.stages), PREFILL: tuned(PREFILL, hash)})
    assert store.read(tmp_path, "H200") is None
    path = store.write(tmp_path, "H200", table)
    assert store.read(tmp_path, "H200") == table
    assert store.read(tmp_path, "H100") is None
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = choose(
        matrix_rows=4096, k=4096, gated=False, max_rows=1, is_coded=True, table=store.read(tmp_path, "H200")
    )
    assert found == table[DECODE] != by_rule(DECODE)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("{", ""),
        ('"rows": 4096', '"rows": "4096"'),
        ('"gated": false', '"gated": 0'),
        ('"k": 4096, ', ""),
        ('"stages"', '"floors"'),
        ('"shape"', '"form"'),
    ],
)
def test_a_damaged_table_counts_as_none(tmp_path: Path, old: str, new: str) -> None:
    path = store.write(tmp_path, "H200", {DECODE: by_rule(DECODE)})
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert store.read(tmp_path, "H200") is None


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("is_coded", [False, True])
def test_a_problem_can_be_run_with_every_config(gated: bool, is_coded: bool) -> None:
    shape = ProductShape(rows=4096, k=4096, gated=gated, max_rows=64, is_coded=is_coded)
    problem = Problem(shape=shape, device=torch.device("meta"))
    for config in (by_rule(shape), *neighbours(by_rule(shape), shape)):
        runs = problem.runs(config)
        assert len(runs) >= LEAST_RUNS
        assert sum(run[0].name == "decode_matrix_kernel" for run in runs) == config.decode_first * len(runs)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("is_coded", [False, True])
def test_a_problem_of_experts_can_be_run_with_every_config(gated: bool, is_coded: bool) -> None:
    shape = replace(EXPERTS, gated=gated, is_coded=is_coded)
    problem = problem_of(shape, torch.device("meta"))
    for config in (by_rule(shape), *neighbours(by_rule(shape), shape)):
        runs = problem.runs(config)
        assert len(runs) >= LEAST_RUNS
        assert [work.name for work in runs[0]][:2] == [
            "group_rows_kernel",
            "expert_gated_kernel" if gated else "expert_linear_kernel",
        ]


def test_a_problem_of_experts_has_one_result() -> None:
    shape = ProductShape(rows=64, k=128, gated=False, max_rows=3, is_coded=True, experts=4, picks=2)
    problem = problem_of(shape, torch.device("cpu"))
    assert isinstance(problem, GroupedProblem)
    results: list[np.ndarray] = []
    for row_tile in (16, 32):
        for work in problem.runs(LinearConfig(row_tile=row_tile))[0]:
            work.run()
        results.append(problem._sum[:, :64].numpy().copy())
    np.testing.assert_array_equal(*results)


def test_parts_and_whole_products_of_a_problem_have_one_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.cuda_tuning.problem.PASSED_BYTES", 1)
    shape = ProductShape(rows=64, k=1024, gated=False, max_rows=2, is_coded=True)
    problem = Problem(shape=shape, device=torch.device("cpu"))
    results: list[np.ndarray] = []
    for parts in (False, True):
        for work in problem.runs(LinearConfig(row_tile=16, parts=parts))[0]:
            work.run()
        results.append(problem._sum.numpy().copy())
    assert_near(results[0], results[1], 0)
