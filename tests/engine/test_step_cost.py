"""An engine reports the time of its short and its long steps."""

from __future__ import annotations

import pytest

from firelane.engine.step.step_cost import LONG_TOKENS, OUTLIER, SHORT_TOKENS, StepCost


def test_short_and_long_steps_are_means_of_their_own():
    cost = StepCost()
    assert (cost.step_ms, cost.token_ms) == (0, 0)
    cost.note(SHORT_TOKENS, 0.010)
    cost.note(LONG_TOKENS - 1, 9.0)
    cost.note(512, 0.256)
    assert (cost.step_ms, cost.token_ms) == (10, 0.5)
    for _ in range(100):
        cost.note(1, 0.020)
    assert cost.step_ms == pytest.approx(20, rel=0.01)


def test_a_step_that_was_held_up_counts_little():
    cost = StepCost()
    cost.note(1, 0.010)
    cost.note(1, 10.0)
    assert cost.step_ms == pytest.approx(10 + 0.1 * (OUTLIER - 1) * 10)
