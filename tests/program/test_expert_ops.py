"""Route and the experts' products: references against torch and plain loops, ties, costs, refused shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as fn

from firelane.program.ops import ExpertGatedLinear, ExpertLinear, Groups, Route
from firelane.program.ops.experts import experts_touched
from firelane.program.recipes import Piece, WeightLayout
from firelane.program.values import DType, StepShape, Value, Weight
from tests.program.test_reference import random, step_with, value, weight

E, K, N, HIDDEN = 6, 2, 5, 8


def integers(name: str, width: int) -> Value:
    return value(name, width, DType.I32)


def matrices(name: str, *shape: int, gated: bool = False, dtype: DType = DType.F32) -> Weight:
    layout = WeightLayout.GATED_EXPERTS if gated else WeightLayout.EXPERTS
    return Weight(
        name=name, shape=shape, dtype=dtype, pieces=(Piece(tensor=name, shape=shape),), layout=layout
    )


def route(experts: int = E, k: int = K, **fields: Any) -> Route:
    shares = value("shares", k)
    return Route(logits=value("logits", experts), picks=integers("picks", k), shares=shares, **fields)


def routed(op: Route, logits: np.ndarray, **weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    step = step_with({op.logits: logits.astype(np.float32)}, **weights)
    op.reference(step)
    return step.read(op.picks), step.read(op.shares)


def sorted_by_id(values: torch.Tensor, ids: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
    order = ids.argsort(dim=-1)
    return ids.gather(-1, order).numpy(), values.gather(-1, order).numpy()


@pytest.mark.parametrize("normalise", [True, False])
def test_softmax_of_the_best(normalise: bool) -> None:
    logits = random(20, E)
    picks, shares = routed(route(normalise=normalise, scale=1.5), logits)
    values, ids = torch.topk(fn.softmax(torch.tensor(logits), -1), K)
    if normalise:
        values = values / values.sum(-1, keepdim=True)
    want_ids, want = sorted_by_id(values * 1.5, ids)
    np.testing.assert_array_equal(picks, want_ids)
    np.testing.assert_allclose(shares, want, rtol=1e-6)


def test_a_bias_chooses_but_does_not_count() -> None:
    logits, bias = random(20, E), 3 * random(E)
    picks, shares = routed(route(score="sigmoid", bias=weight("bias", E)), logits, bias=bias)
    scores = torch.sigmoid(torch.tensor(logits))
    ids = torch.topk(scores + torch.tensor(bias), K).indices
    values = scores.gather(-1, ids)
    want_ids, want = sorted_by_id(values / values.sum(-1, keepdim=True), ids)
    np.testing.assert_array_equal(picks, want_ids)
    np.testing.assert_allclose(shares, want, rtol=1e-6)


def test_groups_that_are_not_kept_are_out_even_when_all_others_are_negative() -> None:
    """The group of the single best expert loses to one whose two best add up to more."""
    logits = np.array([[9.0, -9, 2, 2, -9, -9]])
    bias = np.full(E, -5, np.float32)
    groups = Groups(count=3, keep=1, best=2)
    op = route(score="sigmoid", bias=weight("bias", E), groups=groups)
    assert routed(op, logits, bias=bias)[0].tolist() == [[2, 3]]
    best = replace(op, groups=replace(groups, best=1))
    assert routed(best, logits, bias=bias)[0].tolist() == [[0, 1]]


def test_equals_go_to_the_lower_id_and_picks_ascend() -> None:
    logits = np.array([[0.0, 2, 1, 2, 2, 1], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 7]])
    picks, shares = routed(route(normalise=True), logits)
    assert picks.tolist() == [[1, 3], [0, 1], [0, 5]]
    np.testing.assert_allclose(shares[:2], 0.5)


def test_factors_of_experts() -> None:
    logits, factors = random(4, E), random(E)
    picks, shares = routed(route(), logits)
    _, scaled = routed(route(factors=weight("factors", E)), logits, factors=factors)
    np.testing.assert_allclose(scaled, shares * factors[picks.astype(int)], rtol=1e-6)


def gated_op(**fields: Any) -> ExpertGatedLinear:
    x, out = value("x", HIDDEN), value("gated", K * N)
    w = matrices("w", E, 2 * N, HIDDEN, gated=True)
    return ExpertGatedLinear(**{"x": x, "picks": integers("picks", K), "weight": w, "out": out, **fields})


def down_op(**fields: Any) -> ExpertLinear:
    x, out = value("x", K * N), value("out", HIDDEN)
    w = matrices("w", E, HIDDEN, N)
    return ExpertLinear(**{"x": x, "picks": integers("picks", K), "weight": w, "out": out, **fields})


PICKS = np.array([[0, 5], [2, 3], [0, 2]], np.float32)


@pytest.mark.parametrize("early", [False, True])
def test_gated_slots(early: bool) -> None:
    x, w, b, shares = random(3, HIDDEN), random(E, 2 * N, HIDDEN), random(E, 2 * N, 1), random(3, K)
    shares_value = value("shares", K)
    op = gated_op(bias=matrices("b", E, 2 * N, 1, gated=True), shares=shares_value if early else None)
    step = step_with({op.x: x, op.picks: PICKS, shares_value: shares}, w=w, b=b)
    op.reference(step)
    for row, slot in np.ndindex(3, K):
        expert = int(PICKS[row, slot])
        both = (w[expert] @ x[row] + b[expert, :, 0]) * (shares[row, slot] if early else 1)
        want = fn.silu(torch.tensor(both[:N])).numpy() * both[N:]
        found = step.read(op.out)[row, slot * N : (slot + 1) * N]
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6)


def test_the_sum_of_slots() -> None:
    x, shares, residual = random(3, K * N), random(3, K), random(3, HIDDEN)
    w, b = random(E, HIDDEN, N), random(E, HIDDEN, 1)
    op = down_op(bias=matrices("b", E, HIDDEN, 1), shares=value("shares", K), residual=value("r", HIDDEN))
    values = {op.x: x, op.picks: PICKS, op.shares: shares, op.residual: residual}
    step = step_with({v: a for v, a in values.items() if v is not None}, w=w, b=b)
    op.reference(step)
    for row in range(3):
        want = residual[row]
        for slot in range(K):
            expert = int(PICKS[row, slot])
            part = w[expert] @ x[row, slot * N : (slot + 1) * N] + b[expert, :, 0]
            want = want + shares[row, slot] * part
        np.testing.assert_allclose(step.read(op.out)[row], want, rtol=1e-4, atol=1e-5)


def test_bytes_are_those_of_the_experts_that_a_step_touches() -> None:
    assert experts_touched(128, 8, 1) == 8
    assert experts_touched(4, 4, 3) == 4
    assert experts_touched(128, 8, 2) == 15.5
    one = StepShape(tokens=1, outputs=1, attended=1, context=1, sequences=1)
    op = gated_op()
    cost = op.cost(one)
    assert cost.weight_bytes == pytest.approx(op.weight.nbytes * K / E)
    assert cost.flops == 2 * K * 2 * N * HIDDEN
    many = op.cost(replace(one, tokens=1000))
    assert many.weight_bytes == pytest.approx(op.weight.nbytes)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"k": 7}, "7 of 6 experts"),
        ({"groups": Groups(count=4, keep=1, best=1)}, "in 4 groups"),
        ({"groups": Groups(count=3, keep=4, best=1)}, "4 of 3 groups"),
        ({"groups": Groups(count=3, keep=1, best=3)}, "the best 3 of 2"),
        ({"groups": Groups(count=6, keep=1, best=1)}, "2 of 1 experts"),
        ({"bias": weight("bias", 5)}, r"\(5,\)"),
    ],
    ids=str,
)
def test_routes_that_cannot_be(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(AssertionError, match=why):
        route(**fields)


def test_products_that_cannot_be() -> None:
    with pytest.raises(AssertionError, match="layout"):
        gated_op(weight=matrices("w", E, 2 * N, HIDDEN))
    with pytest.raises(AssertionError, match="x 8"):
        gated_op(weight=matrices("w", E, 2 * N, HIDDEN + 1, gated=True))
    with pytest.raises(AssertionError, match="picks are I32"):
        down_op(picks=value("picks", K))
    with pytest.raises(AssertionError, match="slots"):
        down_op(x=value("x", K * N + 1))
    with pytest.raises(AssertionError, match="bias"):
        down_op(bias=matrices("b", E, N, 1))
    with pytest.raises(AssertionError, match="shares"):
        down_op(shares=value("shares", K + 1))
