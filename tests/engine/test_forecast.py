"""Predictions of when an answer is complete."""

from __future__ import annotations

import pytest

from firelane.engine.policies.forecast import FORGET_S, NEWEST, OUTLIER, Forecast, Pace
from firelane.engine.step.step_time import SAMPLES, StepTimeModel


def test_an_answer_takes_its_prompt_those_ahead_and_its_tokens():
    pace = Pace(tokens=100, full_s=1.0, step_s=0.1, shortest_s=0.05)
    assert pace.seconds(1, 1) == 0.05
    assert pace.seconds(250, 1) == 2.5
    assert pace.seconds(250, 11) == pytest.approx(2.5 + 1.0)


def test_while_prompts_behind_are_computed_its_steps_are_full():
    pace = Pace(tokens=100, full_s=1.0, step_s=0.1, shortest_s=0.05)
    assert pace.seconds(100, 11, behind=300) == pytest.approx(1.0 + 3 * 1.0 + 7 * 0.1)
    assert pace.seconds(100, 3, behind=10**6) == pytest.approx(1.0 + 2 * 1.0)


def test_several_tokens_of_a_step_make_an_answer_sooner():
    pace = Pace(tokens=100, full_s=1.0, step_s=0.1, shortest_s=0.05, drawn=2.0)
    assert pace.seconds(100, 11) == pytest.approx(1.0 + 5 * 0.1)
    assert pace.seconds(100, 11, behind=300) == pytest.approx(1.0 + 3 * 1.0 + 2 * 0.1)


def test_what_drafts_bring_is_learned():
    forecast = Forecast(StepTimeModel(), 100, lambda: 0.0)
    assert forecast.pace().drawn == 1.0
    for _ in range(2000):
        forecast.drew(4, 10)
        forecast.drew(0, 0)
    assert forecast.pace().drawn == pytest.approx(2.5)


def test_it_knows_nothing_before_the_first_step():
    assert Forecast(StepTimeModel(), 100, lambda: 0.0).pace().seconds(10**6, 1000) == 0.0


def test_the_pace_follows_the_steps():
    times, now_s = StepTimeModel(), 100.0
    forecast = Forecast(times, 64, lambda: now_s)
    for _ in range(SAMPLES):
        times.note(1, 0.01)
        times.note(64, 0.04)
    for seconds in (0.01, 0.03):
        forecast.step_ended(seconds)
    assert forecast.pace() == Pace(64, 0.04, pytest.approx(0.02), 0.01)
    for _ in range(2000):
        forecast.step_ended(0.03)
    assert forecast.pace().step_s == pytest.approx(0.03, rel=1e-3)
    now_s += FORGET_S / 2
    assert forecast.pace().step_s == pytest.approx(0.02, rel=1e-3)
    now_s += FORGET_S
    assert forecast.pace().step_s == 0.01
    forecast.step_ended(1000.0)
    assert forecast.pace().step_s <= 0.03 * (1 + NEWEST * OUTLIER) + 1e-6
