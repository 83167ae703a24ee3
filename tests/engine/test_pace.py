from __future__ import annotations

import math

import pytest

from firelane.engine.pace import FRESH_STEPS, SAMPLES, Pace


def noted(step_s, sizes):
    pace = Pace()
    for tokens in sizes * SAMPLES:
        pace.note(tokens, step_s(tokens))
    return pace


def settle(step_s, sizes, factor):
    """Steps of the size that is told, until it stays."""
    pace, told = noted(step_s, sizes), []
    for _ in range(200):
        told.append(max(1, int(pace.tokens_within(factor))))
        pace.note(told[-1], step_s(told[-1]))
    return told


def test_nothing_is_known_at_first():
    assert Pace().tokens_within(2.0) == math.inf
    assert not Pace().knows(1000)


def test_knows_sizes_up_to_that_of_a_step_seen():
    pace = noted(lambda _: 1.0, [20, 300])
    assert [pace.knows(tokens) for tokens in (7, 15, 16, 64, 500)] == [False, False, True, True, True]


@pytest.mark.parametrize("factor", [1.25, 1.5, 2.0])
@pytest.mark.parametrize(
    ("step_s", "best"),
    [
        (lambda n: max(40e-3, 2.5e-3 * n), lambda factor: 16 * factor),  # weights, then arithmetic
        (lambda n: 8e-3 + 30e-6 * n, lambda factor: (factor * 8.03e-3 - 8e-3) / 30e-6),  # a launch, then both
        (lambda n: 1e-3 * n, lambda factor: factor),
    ],
    ids=["cpu", "gpu", "even"],
)
def test_it_finds_the_size_without_much_longer_steps(step_s, best, factor):
    told = settle(step_s, [1, 512], factor)
    assert told[-1] == pytest.approx(best(factor), rel=0.15, abs=1)
    assert max(map(step_s, told)) <= 1.1 * factor * step_s(1)


def test_sizes_beyond_those_seen():
    assert noted(lambda _: 10e-3, [1, 256]).tokens_within(1.5) == pytest.approx(1.5 * 256)


def test_one_step_is_not_enough_to_know():
    pace = Pace()
    known = []
    for _ in range(SAMPLES):
        known.append(pace.knows(7))
        pace.note(5, 1e-3)
    assert not any(known)
    assert pace.knows(7)


def test_what_is_known_is_to_be_seen_again_after_a_while():
    pace = noted(lambda n: 1e-3 * n, [4])
    for _ in range(FRESH_STEPS - 1):
        pace.note(64, 64e-3)
    assert pace.knows(7)
    pace.note(64, 64e-3)
    assert not pace.knows(7)


def test_a_step_that_was_held_up_does_not_count_for_long():
    pace = Pace()
    for seconds in (2.0, *[1e-3] * 3, 2.0, 2.0, 1e-3):
        pace.note(4, seconds)
        pace.note(512, 0.5)
    assert pace.tokens_within(1.5) < 6


def test_a_short_step_that_was_slow_is_no_slower_than_longer_ones():
    pace = noted(lambda n: 5.0 if n == 1 else 1e-3 * n, [1, 2, 512])
    assert pace.tokens_within(1.5) == pytest.approx(3, abs=0.1)


def test_it_follows_a_change():
    pace = noted(lambda n: 1e-3 * n, [1, 512])
    for _ in range(100):
        pace.note(1, 20e-3)
    assert pace.tokens_within(1.5) == pytest.approx(1 + 511 * 10 / 492, rel=0.01)
