from __future__ import annotations

import math

import pytest

from firelane.engine.step.step_time import FRESH_STEPS, SAMPLES, StepTimeModel


def noted(step_s, sizes):
    model = StepTimeModel()
    for tokens in sizes * SAMPLES:
        model.note(tokens, step_s(tokens))
    return model


def settle(step_s, sizes, factor):
    """Steps of the size that is told, until it stays."""
    model, told = noted(step_s, sizes), []
    for _ in range(200):
        told.append(max(1, int(model.tokens_within(factor))))
        model.note(told[-1], step_s(told[-1]))
    return told


def test_nothing_is_known_at_first():
    assert StepTimeModel().tokens_within(2.0) == math.inf
    assert not StepTimeModel().knows(1000)


def test_knows_sizes_up_to_that_of_a_step_seen():
    model = noted(lambda _: 1.0, [20, 300])
    assert [model.knows(tokens) for tokens in (7, 15, 16, 64, 500)] == [False, False, True, True, True]


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
    model = StepTimeModel()
    known = []
    for _ in range(SAMPLES):
        known.append(model.knows(7))
        model.note(5, 1e-3)
    assert not any(known)
    assert model.knows(7)


def test_what_is_known_is_to_be_seen_again_after_a_while():
    model = noted(lambda n: 1e-3 * n, [4])
    for _ in range(FRESH_STEPS - 1):
        model.note(64, 64e-3)
    assert model.knows(7)
    model.note(64, 64e-3)
    assert not model.knows(7)


def test_a_step_that_was_held_up_does_not_count_for_long():
    model = StepTimeModel()
    for seconds in (2.0, *[1e-3] * 3, 2.0, 2.0, 1e-3):
        model.note(4, seconds)
        model.note(512, 0.5)
    assert model.tokens_within(1.5) < 6


def test_a_short_step_that_was_slow_is_no_slower_than_longer_ones():
    model = noted(lambda n: 5.0 if n == 1 else 1e-3 * n, [1, 2, 512])
    assert model.tokens_within(1.5) == pytest.approx(3, abs=0.1)


def test_it_follows_a_change():
    model = noted(lambda n: 1e-3 * n, [1, 512])
    for _ in range(100):
        model.note(1, 20e-3)
    assert model.tokens_within(1.5) == pytest.approx(1 + 511 * 10 / 492, rel=0.01)


def test_the_share_of_one_more_token_is_the_least_slope_to_a_longer_step():
    times = StepTimeModel()
    assert times.share_of_one_more(1) == 0.0
    for _ in range(8):
        times.note(1, 0.010)
        times.note(101, 0.030)
    assert times.share_of_one_more(1) == pytest.approx(0.02)
    times.note(5, 0.200)  # held up by something else
    assert times.share_of_one_more(1) == pytest.approx(0.02)
    for _ in range(8):
        times.note(11, 0.011)
    assert times.share_of_one_more(1) == pytest.approx(0.01)
    assert times.share_of_one_more(101) == pytest.approx(1 / 101)
    assert times.seconds(1) == pytest.approx(0.010)
    assert times.seconds(40) == 0.0


def test_the_time_that_a_step_is_likely_to_take():
    model = noted(lambda n: 8e-3 + 30e-6 * n, [4, 64, 512])
    times = [model.expected_s(tokens) for tokens in (1, 4, 34, 64, 512, 1024)]
    assert times[:2] == [8e-3 + 30e-6 * 4] * 2
    assert times[2] == pytest.approx(8e-3 + 30e-6 * 34)
    assert times[3:] == [pytest.approx(8e-3 + 30e-6 * n) for n in (64, 512)] + [pytest.approx(2 * times[4])]
    assert StepTimeModel().expected_s(100) == 0.0
