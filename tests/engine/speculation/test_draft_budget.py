"""Drafts that fail cost a small part of all steps at most, and those that pay are not held up."""

from __future__ import annotations

from firelane.engine.speculation.draft_budget import EARNED, FIRST, MOST, DraftBudget


def test_drafts_that_always_fail_lose_what_steps_earn_and_the_first_loan():
    budget, lost, steps = DraftBudget(), 0.0, 5000
    for _ in range(steps):
        budget.earn()
        if not budget.is_spent:
            budget.note(0.0, 1.3e3, 1e3)
            lost += 0.3
    assert lost <= EARNED * steps + FIRST + 0.3
    assert lost >= EARNED * steps


def test_drafts_that_pay_are_never_held_up():
    budget = DraftBudget()
    for _ in range(500):
        budget.earn()
        assert not budget.is_spent
        budget.note(1.5, 13.0, 10.0)


def test_what_was_won_pays_for_few_failures_alone():
    budget, tried = DraftBudget(), 0
    for _ in range(50):
        budget.note(5.0, 1.3e3, 1e3)
    while not budget.is_spent:
        budget.note(0.0, 1.3e3, 1e3)
        tried += 1
    assert MOST / 0.3 <= tried <= MOST / 0.3 + 2


def test_the_host_s_time_counts_where_steps_are_short():
    short, long = DraftBudget(), DraftBudget()
    for _ in range(5):
        short.note(0.1, 105e-6, 100e-6)
        long.note(0.1, 51e-3, 50e-3)
    assert short.is_spent
    assert not long.is_spent


def test_nothing_is_paid_before_the_time_of_a_plain_step_is_known():
    budget = DraftBudget()
    for _ in range(9):
        budget.note(0.0, 1.0, 0.0)
    assert not budget.is_spent
