"""Kernels that start while the one before them runs: which do, and what the compiler made of them
(compiled_overlap.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from firelane.backends.cuda.assembly import specialisation
from firelane.backends.cuda.kernels.overlap import (
    DEVICE_BYTES,
    LINE_BYTES,
    PROGRAM_BYTES,
    PROGRAMS,
    begin_overlapped,
    inputs_ahead,
)
from firelane.backends.cuda.launch import Launch
from tests.backends.cuda.small_steps import launches

START, WAIT = "griddepcontrol.launch_dependents", "griddepcontrol.wait"
FETCHES = ("prefetch.global.L2", "CCTL.E.PF2")


@triton.jit
def add_one_kernel(x, OVERLAP: tl.constexpr):
    begin_overlapped(OVERLAP)
    tl.store(x, tl.load(x) + 1)


@triton.jit
def outside_kernel(x):
    tl.store(x, tl.load(x) + 1)


@pytest.fixture(scope="module")
def compiled(compiler: Callable[..., Any]) -> dict[str, Any]:
    return compiler("compiled_overlap")


@pytest.fixture(scope="module")
def kernels(compiled: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return compiled["kernels"]


@pytest.mark.timeout(900)  # the first run compiles
def test_every_kernel_of_a_step_takes_part(compiled: dict[str, Any]) -> None:
    assert compiled["outside"] == []
    assert {name.partition(":")[0] for name in compiled["kernels"]} > {"begin_kernel", "finish_kernel"}


def test_nothing_but_weights_is_touched_before_the_wait(kernels: dict[str, dict[str, Any]]) -> None:
    """And nothing ends before it: a kernel has ended only when the one before has."""
    for name, facts in kernels.items():
        for text, start, wait in ((facts["ptx"], START, WAIT), (facts["sass"], "PREEXIT", "ACQBULK")):
            assert wait in text, name
            before = text[: text.index(wait)]
            assert before[0] == start, name
            assert set(before[1:]) <= set(FETCHES), name
            assert (len(before) > 1) == bool(facts["ahead"]), name


def test_all_but_a_steps_first_start_early(kernels: dict[str, dict[str, Any]]) -> None:
    late = [name for name, facts in kernels.items() if not facts["early"]]
    assert [name.partition(":")[0] for name in late] == ["begin_kernel"]


def test_products_of_few_rows_fetch_their_weights_in_either_form(kernels: dict[str, dict[str, Any]]) -> None:
    fetching = sorted(name.partition(":")[0] for name, facts in kernels.items() if facts["ahead"])
    assert fetching.count("linear_parts_kernel") == fetching.count("gated_linear_kernel") == 2
    assert "linear_kernel" in fetching


def test_without_overlap_nothing_of_it_is_left(kernels: dict[str, dict[str, Any]]) -> None:
    for name, facts in kernels.items():
        assert facts["without"] == [], name
        assert not facts["early_without"], name


def test_overlap_causes_no_spills(kernels: dict[str, dict[str, Any]]) -> None:
    assert {name: facts["problems"] for name, facts in kernels.items() if facts["problems"]} == {}


def test_a_launch_tells_its_kernel_if_that_takes_part() -> None:
    x = torch.zeros(1, dtype=torch.int32)
    taking = Launch(kernel=add_one_kernel, grid=(1,), arguments={"x": x})
    outside = Launch(kernel=outside_kernel, grid=(1,), arguments={"x": x}, overlap=True)
    taking.run()
    outside.run()
    assert x.item() == 2
    assert specialisation(replace(taking, overlap=True)) != specialisation(taking)


@pytest.mark.parametrize("asked", [{}, {"overlap": False}, {"overlap": True}], ids=str)
@pytest.mark.parametrize("gemm", ["invariant", "library"])
def test_a_step_overlaps_only_if_it_is_asked_to(gemm: str, asked: dict[str, bool]) -> None:
    found = launches(gemm=gemm, **asked)
    assert found
    assert all(launch.overlap is asked.get("overlap", False) for launch in found)


@given(
    input_bytes=st.integers(64, 1024),
    inputs=st.integers(1, 200).map(lambda n: 128 * n),
    programs=st.integers(1, 4000),
)
def test_what_is_fetched_ahead_fits_the_cache(input_bytes: int, inputs: int, programs: int) -> None:
    ahead = inputs_ahead(input_bytes=input_bytes, inputs=inputs, programs=programs)
    assert ahead == 0 or (ahead & (ahead - 1) == 0 and 2 * LINE_BYTES <= ahead <= inputs)
    assert ahead * input_bytes <= PROGRAM_BYTES
    assert ahead * input_bytes * min(programs, PROGRAMS) <= DEVICE_BYTES


@pytest.mark.parametrize(
    ("programs", "features"), [(128, 64), (192, 64), (224, 128)], ids=["o", "qkv", "gated"]
)
def test_products_of_an_8b_model_fetch_some_megabytes_ahead(programs: int, features: int) -> None:
    ahead = inputs_ahead(input_bytes=2 * features, inputs=2048, programs=programs)
    assert 6 << 20 <= ahead * 2 * features * programs <= DEVICE_BYTES
