"""Experts on the CPU where picks are extreme: all equal, no numbers, all rows in one expert, each row in
another."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from firelane.program.ops import Route
from firelane.program.values import DType, Value
from tests.backends.cpu_harness import Chunk, Machine, machine
from tests.backends.test_cpu_ops import apart, read
from tests.models.experts import ExpertsSpec, experts_program

SPEC = ExpertsSpec(hidden_size=112, width=48, experts=5, picks=2, dtype=DType.BF16)
ROUTER = "layers.0.experts.router"
ROWS = 30


@pytest.fixture(scope="module")
def driven(kernel_cache) -> Iterator[Machine]:
    m = machine(experts_program(SPEC), kernel_cache, place=apart)
    yield m
    m.executor.release()


def values_of(m: Machine, router: float | NDArray[np.uint16], lengths: list[int]) -> dict[str, np.ndarray]:
    """By name what is in the values of the expert layer after a prompt of ROWS tokens was read in chunks of
    these lengths, with the bits of the router's weights set."""
    packed = m.weights._packed[ROUTER]
    before = packed.copy()
    packed[...] = router
    m.greedy(0, np.random.default_rng(5).integers(0, 331, ROWS + 1).tolist())
    m.give_blocks(0, range(8))
    found: dict[str, list[np.ndarray]] = {}
    at = 0
    for length in lengths:
        m.step([Chunk(0, at, length, score=True)])
        at += length
        for value in outputs_of_experts(m):
            found.setdefault(value.name, []).append(read(m, value, length))
    packed[...] = before
    return {name: np.concatenate(parts) for name, parts in found.items()}


def outputs_of_experts(m: Machine) -> list[Value]:
    ops = m.executor.layout.program.ops
    (at,) = [i for i, op in enumerate(ops) if isinstance(op, Route)]
    return [value for op in ops[at : at + 3] for value in op.outputs]


def picks(found: dict[str, np.ndarray]) -> np.ndarray:
    return found["layers.0.experts.picks"]


def test_equal_experts_are_taken_from_the_first_on(driven: Machine) -> None:
    found = values_of(driven, 0, [ROWS])
    assert (picks(found) == [0, 1]).all()
    assert (found["layers.0.experts.shares"] == 0.5).all()


def test_logits_that_are_no_numbers_pick_experts_all_the_same(driven: Machine) -> None:
    found = values_of(driven, 0x7FC0, [ROWS])
    assert (picks(found) == [0, 1]).all()
    assert np.isnan(found["layers.0.experts.shares"]).all()


@pytest.mark.parametrize("lengths", [[1] * ROWS, [2, 28], [13, 17], [7, 7, 7, 9]], ids=str)
@pytest.mark.parametrize("router", [None, 0], ids=["spread", "two experts"])
def test_a_row_gives_the_same_bits_beside_any_others(
    driven: Machine, lengths: list[int], router: int | None
) -> None:
    """Experts get from no rows to all of them."""
    bits = driven.weights._packed[ROUTER].copy() if router is None else router
    whole, parts = values_of(driven, bits, [ROWS]), values_of(driven, bits, lengths)
    assert len(np.unique(picks(whole))) == (2 if router == 0 else SPEC.experts)
    for name, values in whole.items():
        np.testing.assert_array_equal(values, parts[name], err_msg=name)
