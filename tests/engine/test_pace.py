from __future__ import annotations

import pytest

from firelane.engine.pace import SHORT, Pace


def noted(step_s, tokens):
    pace = Pace()
    for n in tokens:
        for _ in range(50):
            pace.note(n, step_s(n))
    return pace


def test_a_short_step_is_tried_first():
    assert Pace().tokens_within(2.0) < SHORT
    assert noted(lambda n: n, [256, 512]).tokens_within(2.0) < SHORT


@pytest.mark.parametrize("factor", [1.25, 1.5, 2.0])
def test_bound_by_weights_then_by_arithmetic(factor):
    """The shortest step takes 40 ms; from 16 tokens on, each takes 2.5 ms."""
    pace = noted(lambda n: max(40e-3, 2.5e-3 * n), [1, 4, 16, 64, 300, 512])
    assert pace.tokens_within(factor) == pytest.approx(factor * 16)


def test_a_device_that_does_not_feel_tokens():
    assert noted(lambda _: 10e-3, [1, 256]).tokens_within(1.5) == pytest.approx(1.5 * 256)


def test_it_follows_a_change():
    pace = noted(lambda n: 1e-3 * n, [1, 512])
    slow = pace.tokens_within(1.5)
    for _ in range(100):
        pace.note(1, 20e-3)
    assert pace.tokens_within(1.5) == pytest.approx(20 * slow, rel=0.01)
