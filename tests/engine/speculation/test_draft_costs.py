"""Drafts may cost a part of the steps in which some may be made, the host's time counted."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from firelane.contract import CAUSAL
from firelane.engine.speculation.draft_budget import EARNED, FIRST, MOST
from tests.engine.driver import Driver
from tests.engine.oracle import Oracle
from tests.free_steps import make_steps_free

SEED, STEP_S = 7, 1e-3
SIZES = {"max_num_batched_tokens": 64, "max_output_rows": 64, "max_model_len": 120, "num_blocks": 160}


def driver(is_wrong: bool, host_s: float = 0.0) -> Driver:
    """Drafts that are all wrong, or all right. Steps of any size take STEP_S; the host takes host_s for each
    look at its clock."""
    d = Driver(proposer=Oracle(SEED, (CAUSAL,), itertools.cycle([is_wrong])), **SIZES)
    drafter = d.core.drafter
    make_steps_free(drafter)
    drafter.times.seconds = lambda _: STEP_S
    drafter._clock = itertools.count(0.0, host_s).__next__
    return d


def run(d: Driver, request_of, count: int, **fields: int) -> None:
    sent = [request_of(i, range(i + 1), max_tokens=100, seed=SEED) for i in range(count)]
    d.submit(*(msgspec.structs.replace(one, **fields) for one in sent))
    d.run()


@pytest.mark.parametrize("most", [0, 1])
def test_steps_of_requests_that_may_have_no_drafts_pay_for_none(request_of, most):
    d = driver(is_wrong=True)
    run(d, request_of, 4, most_drafted=most)
    assert (d.core.drafter.drafts > 0) == bool(most)
    left = d.core.drafter._budget._left
    assert (left == FIRST) == (not most)


@pytest.mark.parametrize("count", [1, 4])
def test_failing_drafts_cost_what_steps_earn_and_the_first_loan(request_of, count):
    """The host takes half of a step for each draft, which the steps themselves do not show."""
    d = driver(is_wrong=True, host_s=STEP_S / 6)
    steps = itertools.count()
    earn = d.core.drafter._budget.earn
    d.core.drafter._budget.earn = lambda: (next(steps), earn())
    run(d, request_of, count)
    earned = next(steps) * EARNED + FIRST
    tried = d.core.drafter.drafts / count
    assert 0 < tried <= earned / (1 / 6) + 1
    free = driver(is_wrong=True)
    run(free, request_of, count)
    assert free.core.drafter.drafts > d.core.drafter.drafts


def test_drafts_that_are_right_pay_for_the_host(request_of):
    d = driver(is_wrong=False, host_s=STEP_S / 6)
    run(d, request_of, 2)
    assert d.core.drafter.accepted_tokens == d.core.drafter.drafted_tokens > 100
    assert 0 < d.core.drafter._budget._left <= MOST
