"""Route in Triton's interpreter: the picks of the reference, shares that are near, and rows of garbage."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from firelane.backends.cuda.kernels.rows.route import route
from firelane.backends.cuda.step.tables import NUM_COUNTS, TOKENS
from firelane.program.ops import Groups, Route
from firelane.program.values import DType, Rows, Value, Weight
from tests.backends.cuda.rows_harness import assert_untouched, filled, random_split_k, rows_of, sum_of
from tests.program.test_reference import step_with

MAX_ROWS = 5


def op_of(experts: int, picks: int, *, bias: bool = False, factors: bool = False, **options) -> Route:
    def vector(name: str, wanted: bool) -> Weight | None:
        return Weight.stored(name, (experts,), DType.F32) if wanted else None

    return Route(
        logits=Value("logits", Rows.TOKEN, experts, DType.F32),
        picks=Value("picks", Rows.TOKEN, picks, DType.I32),
        shares=Value("shares", Rows.TOKEN, picks, DType.F32),
        bias=vector("bias", bias),
        factors=vector("factors", factors),
        **options,
    )


OPS = {
    "softmax": op_of(7, 2),
    "one expert": op_of(1, 1, score="sigmoid", normalise=False),
    "all of them": op_of(5, 5, scale=2.5),
    "factors": op_of(16, 4, factors=True, normalise=False),
    "chosen with a bias": op_of(20, 3, bias=True, score="sigmoid"),
    "best groups": op_of(24, 4, bias=True, score="sigmoid", groups=Groups(count=4, keep=2, best=2)),
    "groups that are no powers of two": op_of(30, 3, groups=Groups(count=6, keep=5, best=1)),
}


def run(op: Route, logits, vectors: dict[str, np.ndarray], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    picks = rows_of(MAX_ROWS, op.picks.width, torch.int32)
    shares = rows_of(MAX_ROWS, op.picks.width)
    counts = torch.full((NUM_COUNTS,), 77, dtype=torch.int32)
    counts[TOKENS] = rows
    on_device = {name: torch.from_numpy(v) for name, v in vectors.items()}
    route(
        logits,
        picks,
        shares,
        op=op,
        bias=on_device.get("bias"),
        factors=on_device.get("factors"),
        counts=counts,
        count=TOKENS,
        max_rows=MAX_ROWS,
    ).run()
    assert_untouched(picks, rows, op.picks.width)
    assert_untouched(shares, rows, op.picks.width)
    return picks[:rows, : op.picks.width], shares[:rows, : op.picks.width]


def vectors_of(op: Route, rng: np.random.Generator) -> dict[str, np.ndarray]:
    return {w.name: rng.standard_normal(w.shape).astype(np.float32) for w in op.weights}


def assert_as_reference(op: Route, logits: np.ndarray, found, vectors: dict[str, np.ndarray]) -> None:
    step = step_with({op.logits: logits}, **vectors)
    op.reference(step)
    np.testing.assert_array_equal(found[0].numpy(), step.read(op.picks))
    np.testing.assert_allclose(found[1].numpy(), step.read(op.shares), rtol=3e-6)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_picks_and_shares(op: Route) -> None:
    rng, rows = np.random.default_rng(op.logits.width), 4
    logits = rng.standard_normal((rows, op.logits.width)).astype(np.float32) * 3
    logits[1] = 0.25  # all alike: the lowest are chosen
    logits[2, op.logits.width // 2 :] = 60.0
    vectors = vectors_of(op, rng)
    found = run(op, filled(logits, MAX_ROWS), vectors, rows)
    assert_as_reference(op, logits, found, vectors)


def test_logits_in_parts_are_added_up_on_the_way() -> None:
    rng, rows, op = np.random.default_rng(3), 3, OPS["softmax"]
    parts = replace(random_split_k(rng, rows, 7, max_rows=MAX_ROWS, count=4), residual=None)
    total = sum_of(parts, rows)
    found = run(op, parts, {}, rows)
    assert_as_reference(op, total, found, {})
    np.testing.assert_array_equal(parts.out[:rows, :7].numpy(), total)
    for a, b in zip(found, run(op, filled(total, MAX_ROWS), {}, rows), strict=True):
        assert torch.equal(a, b)


def test_logits_that_are_no_numbers_still_give_experts() -> None:
    """Whatever they are: products read matrices by them."""
    logits = np.array(
        [[np.nan] * 7, [np.inf] * 7, [0, np.nan, 1, np.nan, np.nan, np.nan, np.nan]], np.float32
    )
    picks, _ = run(OPS["softmax"], filled(logits, MAX_ROWS), {}, 3)
    assert (picks[:, 0] < picks[:, 1]).all()
    assert ((picks >= 0) & (picks < 7)).all()


def test_no_rows_write_nothing() -> None:
    run(OPS["softmax"], rows_of(MAX_ROWS, 7), {}, 0)
